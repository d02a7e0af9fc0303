"""Makes the pictures of docs/curves.md: `python scripts/curve_pictures.py`, about 15 minutes on one core.

It trains short runs of the labs, healthy ones and sick ones, in `runs/curves` (one that is finished is not made again),
and draws what they wrote into their metrics.jsonl. `docs/curves/runs.json` keeps the curves of the last runs: `--draw`
makes the pictures from it, in seconds. The table of runs in docs/curves.md is written from it too.
"""

import argparse
import io
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from PIL import Image, ImageDraw, ImageFont

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
PAGE = ROOT / "docs" / "curves.md"
FOLDER = ROOT / "docs" / "curves"
DATA = FOLDER / "runs.json"
MARKS = ("<!-- runs: written by scripts/curve_pictures.py -->", "<!-- end of runs -->")
LARGEST = 60_000  # bytes of a picture
DIGITS = 4  # significant digits of a number in runs.json
HEALTHY, SICK, GRID = "#17694a", "#b3340b", "#d5d8dd"  # the titles say which is which, the colours repeat it
COLOURS = ("#0072b2", "#d55e00", "#009e73")  # of Okabe and Ito's palette

CLICKS = ("evaluation.also={}", "evaluation.num_prompts=256", "evaluation.every=10", "checkpoint.every=0")
KL = ("loss.kl=k3", "loss.kl_coef=1.0e-6")  # too little to change anything; without it no KL is measured
# 8 steps and a lower rate learn more slowly than the quickstart does, and show more of the way.
IMAGES = (
    *("updates.epochs=4", "evaluation.every=5", "checkpoint.every=0"),
    *("sampler.num_steps=8", "optimizer.learning_rate=3.0e-4"),
)
GRADED = "{name: shapes, measure: graded}"
COLOUR = "{name: python, function: curve_rewards:colour_asked_for}"
SPREAD = "{name: python, function: curve_rewards:spread, mode: batch, granularity: group, needs: [images], weight: 0}"
FOUR_PASSES = (
    *("iterations=8", "updates.epochs=4", "optimizer.schedule=constant", "averaging=null"),
    *("evaluation.every=2", "evaluation.samples_per_prompt=2", "checkpoint.every=0"),
)


@dataclass(frozen=True)
class Run:
    """A run of a lab: its config, and what is changed in it."""

    config: str
    overrides: tuple[str, ...]

    def command(self) -> str:
        return shlex.join(["mmrl", "train", self.config, *self.overrides])


RUNS: Mapping[str, Run] = {
    "clicks": Run("lab/grpo", ("iterations=60", *CLICKS, *KL)),
    "rate": Run("lab/grpo", ("iterations=60", *CLICKS, *KL, "optimizer.learning_rate=3.0e-3")),
    "cold": Run(
        "lab/grpo", ("iterations=30", *CLICKS, *KL, "sampler.temperature=0.1", "rewards=[{name: point_in_box}]")
    ),
    "corner": Run(
        "lab/grpo",
        (
            *("iterations=60", *CLICKS, *KL, "optimizer.learning_rate=2.0e-4"),
            "rewards=[{name: python, function: curve_rewards:corner}]",
        ),
    ),
    "pulled": Run("lab/grpo", ("iterations=60", *CLICKS, "loss.kl=k3", "loss.kl_coef=0.1")),
    "dialect": Run("lab/grpo", ("iterations=8", *CLICKS, *KL, "modality.dialect=ui_tars")),
    "cut": Run("lab/grpo", ("iterations=8", *CLICKS, *KL, "sampler.max_tokens=4")),
    "micro": Run("lab/grpo", ("iterations=8", *CLICKS, *KL, "updates.micro_batch=4")),
    "images": Run("quickstart", ("iterations=30", f"rewards=[{GRADED}, {SPREAD}]", *IMAGES)),
    "hacked": Run("quickstart", ("iterations=60", f"rewards=[{COLOUR}, {SPREAD}]", *IMAGES)),
    "jpeg": Run("quickstart", ("iterations=30", f"rewards=[{{name: jpeg_size}}, {SPREAD}]", *IMAGES)),
    "few": Run(
        "quickstart", ("iterations=30", f"rewards=[{GRADED}, {SPREAD}]", "prompts.train=two_prompts.txt", *IMAGES)
    ),
    "clip": Run("lab/flow_grpo", FOUR_PASSES),
    "clip-never": Run("lab/flow_grpo", (*FOUR_PASSES, "loss.clip_low=0.2", "loss.clip_high=0.2")),
    "clip-always": Run("lab/flow_grpo", (*FOUR_PASSES, "loss.clip_low=1.0e-5", "loss.clip_high=1.0e-5")),
}


@dataclass(frozen=True)
class Panel:
    """A row of a picture: the metrics that it shows, with their names in the legend, of both runs on the same axes."""

    metrics: Mapping[str, str]
    is_log: bool = False
    limits: tuple[float, float] | None = None  # of the y axis; None: what the runs need
    is_shared: bool = True  # whether both runs have the same y axis; rewards in different units cannot


@dataclass(frozen=True)
class Picture:
    """A healthy run beside a sick one."""

    healthy: str
    sick: str
    title: str  # what is wrong with the sick one
    panels: tuple[Panel, ...]
    healthy_title: str = "healthy"
    until: int | None = None  # the last iteration of the x axes; None: that of the longer run


SHARE = (-0.04, 1.04)
SCORES = Panel({"reward/mean": "reward/mean", "held_out/score": "held_out/score"}, limits=SHARE)
DEGENERATE = Panel({"groups/degenerate": "groups/degenerate"}, limits=SHARE)
HELD_OUT = Panel({"held_out/score": "held_out/score"}, limits=SHARE)
CLIPPED = Panel(
    {"loss/clip_fraction_low": "clip_fraction_low", "loss/clip_fraction_high": "clip_fraction_high"},
    limits=(-0.02, 0.6),
)
PICTURES: Mapping[str, Picture] = {
    "reward": Picture("clicks", "rate", "learning rate x 30", (SCORES,)),
    "rate": Picture(
        "clicks",
        "rate",
        "learning rate x 30",
        (
            Panel({"loss/kl": "loss/kl"}, is_log=True),
            Panel({"loss/log_ratio_size": "loss/log_ratio_size"}, is_log=True),
            Panel({"optimizer/grad_norm": "optimizer/grad_norm"}, is_log=True),
        ),
    ),
    "spread": Picture("clicks", "cold", "answers all alike", (DEGENERATE, SCORES), until=30),
    "dialect": Picture(
        "clicks",
        "dialect",
        "the wrong dialect",
        (
            Panel({"reward/point_in_box/mean": "reward/point_in_box/mean"}, limits=SHARE),
            Panel({"answers/understood": "answers/understood", "groups/degenerate": "groups/degenerate"}, limits=SHARE),
        ),
        until=8,
    ),
    "cut": Picture(
        "clicks",
        "cut",
        "max_tokens too small",
        (
            Panel({"answers/tokens": "answers/tokens"}, limits=(2.5, 9.5)),
            Panel({"answers/finished": "answers/finished", "reward/mean": "reward/mean"}, limits=SHARE),
        ),
        until=8,
    ),
    "entropy": Picture(
        "clicks",
        "corner",
        "one answer fits all",
        (Panel({"policy/entropy": "policy/entropy"}, limits=(0, 1.25)), HELD_OUT),
    ),
    "kl": Picture("clicks", "corner", "one answer fits all", (Panel({"loss/kl": "loss/kl"}, is_log=True), HELD_OUT)),
    "hacked": Picture(
        "images",
        "hacked",
        "a hacked reward",
        (Panel({"reward/mean": "reward/mean"}, is_shared=False), HELD_OUT),
    ),
    "diversity": Picture(
        *("images", "jpeg", "rewarded for small files"),
        (Panel({"reward/spread/mean": "reward/spread/mean"}, limits=(0, 0.1)), HELD_OUT),
    ),
    "few": Picture("images", "few", "two prompts, not 144", (SCORES,)),
    "clip-never": Picture("clip", "clip-never", "0.2: never clips", (CLIPPED, HELD_OUT)),
    "clip-always": Picture("clip", "clip-always", "1e-5: always clips", (CLIPPED, HELD_OUT)),
    "time": Picture(
        "clicks",
        "micro",
        "micro_batch 4, not 512",
        (Panel({"time/rollout": "time/rollout", "time/update": "time/update"}),),
        until=8,
    ),
}


def train(name: str, folder: Path) -> None:
    """Makes the run in `folder`, as its command does in `scripts`, with one thread; a finished one stays as it is."""
    summary = folder / name / "summary.json"
    if summary.exists() and json.loads(summary.read_text(encoding="utf-8"))["is_complete"]:
        return
    run = RUNS[name]
    command = [sys.executable, "-m", "mmrl", "train", run.config, *run.overrides, "--out", str(folder / name)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run(command, cwd=SCRIPTS, env=settings, check=True)


def shown_metrics(name: str) -> list[str]:
    """Returns the metrics that pictures show of a run."""
    panels = [
        panel for picture in PICTURES.values() if name in (picture.healthy, picture.sick) for panel in picture.panels
    ]
    return sorted(
        {"held_out/score", "prompts/passes", "reward/mean", *(metric for panel in panels for metric in panel.metrics)}
    )


def read(name: str, folder: Path) -> dict[str, Any]:
    """Returns what runs.json holds of a run: its command, its held-out score, and the curves that are shown."""
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curves = {
        metric: {
            "iteration": [line["iteration"] for line in lines if metric in line],
            "value": [_rounded(line[metric]) for line in lines if metric in line],
        }
        for metric in shown_metrics(name)
    }
    held_out = json.loads((folder / name / "summary.json").read_text(encoding="utf-8"))["held_out"]
    return {
        "command": RUNS[name].command(),
        "held_out": {end: _rounded(held_out[end]) for end in ("before", "best", "after")},
        "curves": {metric: curve for metric, curve in curves.items() if curve["value"]},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def table(runs: Mapping[str, Any]) -> str:
    """Returns the table of runs of the page, in Markdown."""
    rows = ["| run | held out: before | best | after | command, in `scripts/` |", "|---|---|---|---|---|"]
    for name, run in runs.items():
        before, best, after = (f"{run['held_out'][end]:.3f}" for end in ("before", "best", "after"))
        rows.append(f"| {name} | {before} | {best} | {after} | `{run['command']}` |")
    return "\n".join(rows) + "\n"


def with_table(page: str, runs: Mapping[str, Any]) -> str:
    """Returns the page with its table of runs written anew."""
    start, end = MARKS
    before, _, rest = page.partition(start)
    _, _, after = rest.partition(end)
    return f"{before}{start}\n\n{table(runs)}\n{end}{after}"


def draw(name: str, runs: Mapping[str, Any]) -> bytes:
    """Returns the PNG of a picture: columns are the healthy and the sick run, rows are panels on the same axes."""
    picture = PICTURES[name]
    rows = len(picture.panels)
    with plt.rc_context({"font.size": 12, "axes.edgecolor": "#777777"}):
        figure, grid = plt.subplots(
            *(rows, 2),
            figsize=(6.6, 0.75 + 1.55 * rows),
            sharex=True,
            squeeze=False,
            layout="constrained",
        )
        for line, panel in zip(grid, picture.panels, strict=True):
            if panel.is_shared:
                line[1].sharey(line[0])
                line[1].tick_params(labelleft=False)
        for column, (run, title, colour) in enumerate(
            ((picture.healthy, picture.healthy_title, HEALTHY), (picture.sick, picture.title, SICK))
        ):
            grid[0][column].set_title(title, color=colour, fontsize=13, fontweight="bold")
            for axes, panel in zip(grid[:, column], picture.panels, strict=True):
                _draw_panel(axes, panel, runs[run]["curves"], is_first=column == 0)
            grid[-1][column].set_xlabel("iteration")
        if picture.until is not None:
            grid[0][0].set_xlim(-0.3, picture.until + 0.3)
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=110)
        plt.close(figure)
    return compressed(Image.open(buffer))


def _draw_panel(axes: Axes, panel: Panel, curves: Mapping[str, Any], *, is_first: bool) -> None:
    for colour, (metric, label) in zip(COLOURS, panel.metrics.items(), strict=False):
        curve = curves[metric]
        values = [math.nan if value is None else value for value in curve["value"]]
        marker = "o" if metric.startswith("held_out") else ""
        style = "--" if colour != COLOURS[0] and not marker else "-"
        axes.plot(
            curve["iteration"], values, style, marker=marker, markersize=5, color=colour, label=label, linewidth=2
        )
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.03)
    if panel.is_log:
        axes.set_yscale("log")
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    if len(panel.metrics) == 1 and is_first:
        (label,) = panel.metrics.values()
        axes.set_ylabel(label.replace("/", "/\n", 1), fontsize=11)
    if len(panel.metrics) > 1 and is_first:
        axes.legend(fontsize=10, framealpha=0.85, borderpad=0.3)


def compressed(picture: Image.Image) -> bytes:
    """Returns the picture as a small PNG, with a palette."""
    buffer = io.BytesIO()
    picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def strip(run: Path, iterations: Sequence[int], number: int = 8) -> Image.Image:
    """Returns pictures that a run saved of the same prompts and noise: a row for each iteration, the prompts above."""
    side, gap, head = 96, 6, 34
    sheet = Image.new("RGB", (number * (side + gap) - gap, head + len(iterations) * (side + gap) - gap), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for row, iteration in enumerate(iterations):
        folder = run / "samples" / f"{iteration:06d}"
        samples = json.loads((folder / "samples.json").read_text(encoding="utf-8"))["samples"][:number]
        for column, sample in enumerate(samples):
            left, words = column * (side + gap), sample["prompt"].split()
            with Image.open(folder / sample["file"]) as picture:
                enlarged = picture.convert("RGB").resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (left, head + row * (side + gap)))
            if row == 0:
                pen.multiline_text(
                    (left, 2), f"{' '.join(words[:2])}\n{' '.join(words[2:])}", "#333333", font, spacing=2
                )
    return sheet


STRIPS: Mapping[str, tuple[str, tuple[int, ...]]] = {  # picture: the run, and the iterations of its rows
    "hacked-pictures": ("hacked", (0, 10, 30, 60)),
    "jpeg-pictures": ("jpeg", (0, 5, 15, 30)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="RUN", help="runs to make; all by default")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "curves", help="where the runs go")
    parser.add_argument("--draw", action="store_true", help="only draw, from docs/curves/runs.json")
    given = parser.parse_args()
    if wrong := sorted(set(given.names) - set(RUNS)):
        parser.error(f"there is no run {wrong[0]!r}; allowed are {', '.join(RUNS)}")
    FOLDER.mkdir(exist_ok=True)
    known: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    if not given.draw:
        for name in given.names or RUNS:
            train(name, given.runs.resolve())
            known[name] = read(name, given.runs)
        known = {name: known[name] for name in RUNS if name in known}
        DATA.write_text(json.dumps(known, separators=(",", ":")).replace('},"', '},\n"') + "\n", encoding="utf-8")
        for name, (run, iterations) in STRIPS.items():
            if (given.runs / run / "samples").exists():
                (FOLDER / f"{name}.png").write_bytes(compressed(strip(given.runs / run, iterations)))
    for name, picture in PICTURES.items():
        if {picture.healthy, picture.sick} <= known.keys():
            (FOLDER / f"{name}.png").write_bytes(draw(name, known))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), known), encoding="utf-8")


if __name__ == "__main__":
    main()
