"""The groups of a run's iterations, in `groups.jsonl`: what each prompt's samples scored, a line for each iteration."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmrl.reporting.metrics_log import MetricsLog, append_line

ROLLOUTS = "rollouts"  # the folder of samples of training groups, beside groups.jsonl


@dataclass(frozen=True)
class Group:
    """The scores of one prompt's samples in one iteration."""

    prompt: int  # prompt index: how many prompts the run took before
    name: str  # the same for the same prompt in every iteration
    text: str  # of the prompt, shortened
    size: int  # samples, or episodes
    mean: float | None  # of the totals; None: no sample could be judged
    std: float | None  # of the totals
    rewards: Mapping[str, float | None] = field(default_factory=dict)  # the mean of each reward
    is_degenerate: bool = False

    def entry(self) -> dict[str, object]:
        """Returns the object of the log."""
        numbers = {name: _short(value) for name, value in self.rewards.items()}
        return {
            "prompt": self.prompt,
            "name": self.name,
            "text": self.text,
            "size": self.size,
            "mean": _short(self.mean),
            "std": _short(self.std),
            "rewards": numbers,
            "degenerate": self.is_degenerate,
        }


@dataclass(frozen=True)
class GroupLog:
    """The file of a run's groups, and the folders of samples beside it. Only the main process writes it."""

    path: Path

    def write(self, iteration: int, groups: Sequence[Group]) -> None:
        """Appends the line of an iteration, counted from 1. Raises RunError where the disk is full."""
        line = {"iteration": iteration, "groups": [group.entry() for group in groups]}
        append_line(self.path, json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n")

    def samples_of(self, iteration: int) -> Path:
        """Returns the folder of the samples of an iteration."""
        return self.path.parent / ROLLOUTS / f"{iteration:06d}"

    def cut_back(self, iteration: int) -> None:
        """Removes the lines and the folders of later iterations than `iteration` (-1: all)."""
        MetricsLog(self.path).cut_back(iteration)
        for folder in (self.path.parent / ROLLOUTS).glob("*"):
            if folder.name.isdecimal() and int(folder.name) > iteration:
                shutil.rmtree(folder)

    def sync(self) -> None:
        """Flushes the file to the disk."""
        MetricsLog(self.path).sync()


def _short(value: float | None) -> float | None:
    """Returns five significant digits; None for what is no finite number."""
    return float(f"{value:.5g}") if value is not None and math.isfinite(value) else None
