"""Runs of the labs by a real vLLM, one iteration ahead too, against the same runs by the trainer's own rollouts."""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmrl.labs import checkpoint
from mmrl.reporting.record import read_record

from .environment import serving

# the config, its lab, its iterations, and the settings of all of its runs
RUNS = {
    "clicks": ("quickstart_gui", "screens", 100, []),
    "agents": ("quickstart_agent", "tasks", 15, ["evaluation.num_prompts=128"]),
}
SIDES: dict[str, list[str]] = {
    "own": [],
    "vllm": ["modality.engine={name: vllm, url: URL}"],
    "ahead": ["modality.engine={name: vllm, url: URL}", "rollout={ahead: 1}"],
}


def rows(folder: Path, task: str, sides: Sequence[str], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Gives a line for each run, which take turns, and one for each side with its mean score."""
    config, lab, iterations, settings = RUNS[task]
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    with serving(folder, checkpoint(lab)) as url, TemporaryDirectory() as parent:
        for seed in seeds:
            for side in sides:
                given = [*settings, *(text.replace("URL", url) for text in SIDES[side])]
                given += [f"seed={seed}", f"iterations={iterations}", f"evaluation.every={iterations}"]
                run = Path(parent) / f"{side}-{seed}"
                _train(config, given, run)
                found[side].append(_figures(run))
                yield {"task": task, "side": side, "seed": seed, **found[side][-1]}
    for side, figures in found.items():
        scores = [each["after"] for each in figures]
        difference = statistics.mean(scores) - statistics.mean(each["after"] for each in found[sides[0]])
        yield {
            "task": task,
            "side": side,
            "mean": round(statistics.mean(scores), 4),
            "difference": round(difference, 4),
        }


def _train(config: str, settings: Sequence[str], run: Path) -> None:
    command = [sys.executable, "-m", "mmrl", "train", config, *settings, "checkpoint.every=0", "--out", str(run)]
    subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _figures(run: Path) -> dict[str, Any]:
    """Returns the held-out score before and after a run, medians of its seconds, and what its engine's metrics say."""
    metrics = read_record(run).metrics
    scores = metrics["held_out/score"].values
    times = {name: statistics.median(metrics[f"time/{name}"].values) for name in ("iteration", "rollout")}
    figures = {"before": round(scores[0], 4), "after": round(scores[-1], 4)}
    figures |= {f"{name}_seconds": round(value, 3) for name, value in times.items()}
    for metric in ("engine/difference", "engine/effective", "rollout/staleness"):
        if metric in metrics:
            figures[metric] = float(f"{statistics.mean(metrics[metric].values):.3g}")
    return figures
