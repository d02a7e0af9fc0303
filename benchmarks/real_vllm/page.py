"""Writes docs/real_vllm.md from the lines of the measurements: `python -m benchmarks.real_vllm page`."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .environment import VERSION

RESULTS = Path(__file__).parent / "results"
FILE = Path(__file__).resolve().parents[2] / "docs" / "real_vllm.md"
HEAD = f"""# A real vLLM on the CPU

This page is written by `python -m benchmarks.real_vllm page` from the lines in `benchmarks/real_vllm/results/`.

`python -m benchmarks.real_vllm install` makes an environment with vLLM {VERSION} for CPUs (Python 3.11, 3.5 GB, two
minutes). Each section below names the command that measured it. Servers and runs had one thread each, on two cores.
What this cannot show: kernels and memory of a GPU, sleep and wake, sampling masks (vLLM needs Triton for them), and
models of real size. How engines are used is told in [engines.md](engines.md).
"""
STAGES = ("as loaded", "moved, sent", "moved back, sent", "moved, not sent")
Row = Mapping[str, Any]


def main() -> None:
    """Writes the page."""
    FILE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Returns the page, of the sections that were measured."""
    parts = [HEAD]
    for name, section in SECTIONS.items():
        path = RESULTS / f"{name}.jsonl"
        if path.exists():
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            parts.append("\n".join(section(rows)) + "\n")
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)])


def _agreement(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Agreement\n"
    yield "`python -m benchmarks.real_vllm agreement`: random models of each family, up to 64 answers of 16 tokens to"
    yield "prompts with none, one and two images, or with videos. The trainer computes in float32. Numbers are the mean"
    yield "and the largest difference of a token's log-prob in nats. All trained weights are moved by a fifth of their"
    yield "spread, then sent; the last column is the control, answers by the weights before the move. A run warns once"
    yield "where the mean is above 0.05, or rises to four times that of its first iteration and above 0.001."
    yield "With videos the LoRA is on the language model alone: with one on the tower, too, vLLM's log-probs were"
    yield "0.9 nats from those with the tower's part and from those without it, and mmrl refused the run.\n"
    yield _by_stage(rows, lambda found: f"{found['mean']:.1e}, {found['largest']:.1e}")
    yield "\nThe same rows by k3, the estimate of KL(engine, trainer) per token, and by the effective sample size:\n"
    yield _by_stage(rows, lambda found: f"{found['k3']:.1e}, {found['effective']:.4g}")


def _by_stage(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    case = ("family", "prompts", "trained", "server")
    shown = [[*(row[name] for name in case), *(cell(row[stage]) for stage in STAGES)] for row in rows]
    return _table(["family", "prompts", "sent", "server", *STAGES], shown)


def _learning(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Learning\n"
    yield "`python -m benchmarks.real_vllm learning --task clicks` and `--task agents`: `quickstart_gui` for 100"
    yield "iterations and `quickstart_agent` for 15, by the trainer's own rollouts and by vLLM in float32; `ahead` is"
    yield "`rollout.ahead: 1`. Scores are of held-out prompts, sampled, before and after training; seconds are medians"
    yield "on the two cores that trainer and server share, now and then with other jobs."
    yield ""
    runs = [row for row in rows if "seed" in row]
    shown = [
        [
            *(row[name] for name in ("task", "side", "seed", "before", "after", "iteration_seconds")),
            *(row.get(name, "") for name in ("engine/difference", "engine/effective", "rollout/staleness")),
        ]
        for row in runs
    ]
    columns = ["task", "rollouts", "seed", "before", "after", "s/iteration", "nats", "effective", "staleness"]
    yield _table(columns, shown)
    means = [[row["task"], row["side"], row["mean"], row["difference"]] for row in rows if "mean" in row]
    if means:
        yield ""
        yield _table(["task", "rollouts", "mean after", "against own"], means)


def _faults(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Faults\n"
    yield "`python -m benchmarks.real_vllm faults`, five iterations of `quickstart_gui`. `left`: folders of weights in"
    yield "the temporary folder, processes of the server and adapters on it, where these were counted.\n"
    shown = []
    for row in rows:
        counted = {"folders_left": "folders", "processes": "processes", "adapters_left": "adapters"}
        left = ", ".join(f"{row[name]} {what}" for name, what in counted.items() if name in row)
        words = " ".join(row.get("says", [])).removeprefix("mmrl: ")
        shown.append([row["fault"], row.get("exit", ""), row.get("iterations", ""), words, left])
    yield _table(["what happens", "exit", "iterations", "last message", "left"], shown)


def _speed(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Speed\n"
    yield "`python -m benchmarks.real_vllm speed`: the screens lab (1.5 million weights, 2,048 answers of at most 12"
    yield "tokens) and a random Qwen2.5-VL of 72 million (64 answers of 64 tokens), float32, in turns. CPU"
    yield "seconds are those of both processes. `vLLM over before` is by the client of the commit before engines had"
    yield "several servers, `--against` a checkout of it, with a server of its own.\n"
    shown = [
        [
            row["case"],
            row["own_tokens_per_second"],
            row["vllm_tokens_per_second"],
            row["vllm_over_own"],
            row.get("vllm_over_before", ""),
            row["own_tokens_per_cpu_second"],
            row["vllm_tokens_per_cpu_second"],
            row["sync_seconds"],
        ]
        for row in rows
    ]
    columns = [
        "model",
        "own, tokens/s",
        "vLLM, tokens/s",
        "vLLM over own",
        "vLLM over before",
        "own, per CPU s",
        "vLLM, per CPU s",
        "sync, s",
    ]
    yield _table(columns, shown)


SECTIONS: dict[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "agreement": _agreement,
    "learning": _learning,
    "faults": _faults,
    "speed": _speed,
}
