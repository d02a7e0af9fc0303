"""Tables and plots of the comparison on the labs, from the results of compare.py, into docs/lab.md.

    python benchmarks/compare_page.py

What stands between the marks `<!-- compare LAB -->` (or `longer LAB`, `once LAB`) and `<!-- end -->` of the page is
written anew; the plots are docs/images/compare_LAB.png. A score at a budget lies on the line between the two
evaluations around it.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from compare import BUDGETS, LONGER, ONCE, RESULTS, ROOT, SEEDS, TIMES, compared, lines_of
from PIL import Image

from mmrl.core.config import load_config

COLOURS = (*(f"C{number}" for number in range(7)), "C9")  # of the best; all others are grey, as C7 is


@dataclass(frozen=True)
class Algorithm:
    """The runs of one config over the seeds."""

    name: str
    parts: str  # sampler, advantage, loss
    learning_rate: float
    steps_per_iteration: int  # of the optimizer
    curves: tuple[tuple[Mapping[str, Any], ...], ...]

    def at(self, axis: str, budget: float) -> list[float]:
        """The score of each seed when so much of `axis` was used."""
        return [_between(curve, axis, budget) for curve in self.curves]

    def num_calls(self, budget: float) -> float:
        """Network calls that the runs made of so many, the median of the seeds: their time may have been up before."""
        return min(budget, statistics.median(float(curve[-1]["calls"]) for curve in self.curves))

    def num_steps(self, budget: float) -> int:
        """Optimizer steps of these calls."""
        last = self.curves[0][-1]
        steps = self.num_calls(budget) / float(last["calls"]) * float(last["iteration"])
        return round(steps * self.steps_per_iteration)


def _between(curve: Sequence[Mapping[str, Any]], axis: str, budget: float) -> float:
    before = curve[0]
    for point in curve:
        if point[axis] >= budget:
            share = (budget - before[axis]) / max(point[axis] - before[axis], 1e-9)
            return float(before["score"] + share * (point["score"] - before["score"]))
        before = point
    return float(before["score"])


def algorithms(lab: str, results: Path, seeds: Sequence[int] = SEEDS) -> list[Algorithm]:
    """Those with runs of all seeds at a rate, best first at the budget of seconds; of two runs alike the later."""
    names = compared(lab)
    found: dict[tuple[str, float], dict[int, dict[str, Any]]] = {}
    for row in lines_of(results):
        if row["config"] in names:
            found.setdefault((row["config"], row["learning_rate"]), {})[row["seed"]] = row
    whole = [
        Algorithm(
            name.removeprefix("lab/"),
            " · ".join(f"`{part}`" for part in rows[seeds[0]]["algorithm"].values()),
            learning_rate,
            _steps_per_iteration(name),
            tuple(tuple(rows[seed]["curve"]) for seed in seeds),
        )
        for (name, learning_rate), rows in found.items()
        if set(seeds) <= set(rows)
    ]
    return sorted(whole, key=lambda row: -statistics.mean(row.at("seconds", BUDGETS[lab].seconds)))


def _steps_per_iteration(name: str) -> int:
    updates = load_config(name).updates
    return updates.epochs * updates.minibatches


def table(lab: str, rows: Sequence[Algorithm]) -> str:
    """A line for each algorithm, in their order."""
    budget = BUDGETS[lab]
    lines = [
        [
            "algorithm",
            "sampler · advantage · loss",
            "rate",
            "steps",
            f"at {budget.calls:,} calls",
            f"at {budget.seconds:g} s",
        ]
    ]
    for row in rows:
        at = [_spread(row.at(axis, limit)) for axis, limit in asdict(budget).items()]
        if row.num_calls(budget.calls) < budget.calls:
            at[0] += f" ({row.num_calls(budget.calls):,.0f})"
        lines.append([f"`{row.name}`", row.parts, f"{row.learning_rate:.2g}", str(row.num_steps(budget.calls)), *at])
    return _markdown(lines)


def longer_table(lab: str, rows: Sequence[Algorithm]) -> str:
    """A line for each algorithm and rate, by name: scores on the way to the longer budget of calls."""
    calls = [BUDGETS[lab].calls * factor for factor in (1, TIMES // 2, TIMES)]
    lines = [["algorithm", "rate", "steps", *(f"at {count:,} calls" for count in calls)]]
    for row in sorted(rows, key=lambda row: (row.name, row.learning_rate)):
        scores = [_spread(row.at("calls", count)) for count in calls]
        lines.append([f"`{row.name}`", f"{row.learning_rate:.2g}", str(row.num_steps(calls[-1])), *scores])
    return _markdown(lines)


def _markdown(lines: list[list[str]]) -> str:
    """A table whose first line is its head."""
    head, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, f"|{' --- |' * len(lines[0])}", *rows])


def _spread(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def plot(lab: str, rows: Sequence[Algorithm], file: Path) -> None:
    """Held-out score against calls and seconds: the first ones in colour, all others in grey."""
    budget = BUDGETS[lab]
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for axis, (name, limit, label) in zip(
        axes,
        (("calls", budget.calls, "network calls, a backward pass as two"), ("seconds", budget.seconds, "CPU seconds")),
        strict=True,
    ):
        places = [limit * step / 40 for step in range(41)]
        for number, row in reversed(list(enumerate(rows))):
            seeds = [row.at(name, place) for place in places]
            mean = [statistics.mean(values) for values in seeds]
            is_best = number < len(COLOURS)
            style = {"color": COLOURS[number], "label": row.name, "linewidth": 1.8} if is_best else {"color": "0.8"}
            axis.plot(places, mean, zorder=3 if is_best else 1, **style)
            if is_best:
                axis.fill_between(
                    places, [min(v) for v in seeds], [max(v) for v in seeds], color=COLOURS[number], alpha=0.1
                )
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("held-out score, mean of three seeds")
    handles, labels = axes[1].get_legend_handles_labels()
    axes[1].legend(handles[::-1], labels[::-1], fontsize=8, loc="lower right")
    drawn = BytesIO()
    figure.savefig(drawn, dpi=90)
    plt.close(figure)
    few_colours = Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE)  # a sixth of the bytes
    few_colours.save(file, optimize=True)


def with_body(text: str, mark: str, body: str) -> str:
    """The page with `body` between a mark and its end."""
    marked = rf"(<!-- {mark} -->\n).*?(<!-- end -->)"
    text, count = re.subn(marked, lambda match: match[1] + body + match[2], text, flags=re.DOTALL)
    assert count == 1, f"docs/lab.md has {count} places for {mark}"
    return text


def main() -> None:
    page = ROOT / "docs" / "lab.md"
    text = page.read_text("utf-8")
    for lab in BUDGETS:
        rows = algorithms(lab, RESULTS)
        if not rows:
            continue
        plot(lab, rows, ROOT / "docs" / "images" / f"compare_{lab}.png")
        body = f"![held-out scores on the {lab} lab](images/compare_{lab}.png)\n\n{table(lab, rows)}\n"
        text = with_body(text, f"compare {lab}", body)
        if longer := algorithms(lab, LONGER):
            text = with_body(text, f"longer {lab}", f"{longer_table(lab, longer)}\n")
        if once := algorithms(lab, ONCE, SEEDS[:1]):
            text = with_body(text, f"once {lab}", f"{table(lab, once)}\n")
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
