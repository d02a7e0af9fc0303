"""What the benchmarks share: building a run, timing two programs in turns, JSON lines."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mmrl.assembly.build import build, make_trainer
from mmrl.core.config import load_config
from mmrl.training.trainer import Trainer

Seconds = Mapping[str, float]  # of each phase of one iteration, by name


def trainer_of(config: str, overrides: Sequence[str], folder: Path) -> Trainer:
    """A shipped config's trainer at iteration 0, its weights loaded, nothing tracked."""
    settings = load_config(config, overrides)
    return make_trainer(settings, build(settings), folder)


def in_turns(first: Callable[[], Seconds], second: Callable[[], Seconds], pairs: int) -> list[tuple[Seconds, Seconds]]:
    """Runs both `pairs` times, the first one first in every other pair, after one pair that is not counted.

    What else the machine does then falls on both alike, and a ratio within a pair means something on a busy machine.
    """
    measured = []
    for number in range(pairs + 1):
        if number % 2:
            one, other = first(), second()
        else:
            other, one = second(), first()
        measured.append((one, other))
    return measured[1:]


def median_ratio(pairs: Sequence[tuple[Seconds, Seconds]], *phases: str) -> float:
    """Median over pairs of first / second, each the sum of the phases."""
    return statistics.median(sum(a[p] for p in phases) / sum(b[p] for p in phases) for a, b in pairs)


def median_seconds(runs: Sequence[Seconds]) -> dict[str, float]:
    """Median of each phase."""
    return {phase: round(statistics.median(run[phase] for run in runs), 4) for phase in runs[0]}


class Clock:
    """Seconds since it was made or last read."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def __call__(self) -> float:
        before, self._last = self._last, time.perf_counter()
        return self._last - before


def emit(benchmark: str, /, **values: Any) -> None:
    """One JSON line on stdout."""
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    print(json.dumps({"benchmark": benchmark, **values, **machine}), flush=True)


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """With the option that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    return parser
