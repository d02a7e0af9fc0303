"""Numbers that change over the iterations of a run."""

import math
from dataclasses import dataclass
from typing import Literal

from mmrl.core.checked import Checked

Shape = Literal["linear", "cosine", "step"]


@dataclass(frozen=True)
class Schedule(Checked):
    """A number that goes from `start`, up to the iteration `first`, to `end`, from the iteration `last` on.

    Between the two, p = (iteration - first) / (last - first) and the number is start + (end - start) s(p), with
    s(p) = p (`linear`), (1 - cos(pi p)) / 2 (`cosine`) or 0 (`step`: the end comes at once, at `last`).
    Raises ValueError for numbers that are not finite, or a `last` that is not after `first`.
    """

    start: float  # the value up to the iteration `first`
    end: float  # the value from the iteration `last` on
    last: int  # an iteration, counted from 0, after `first`
    first: int = 0  # an iteration, counted from 0
    shape: Shape = "linear"  # of the way from `start` to `end`

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise ValueError(f"start and end must be finite, got {self.start} and {self.end}")
        if not 0 <= self.first < self.last:
            raise ValueError(f"needs 0 <= first < last, got first {self.first} and last {self.last}")

    def __call__(self, iteration: int) -> float:
        """Returns the value at an iteration, counted from 0."""
        part = min(1.0, max(0.0, (iteration - self.first) / (self.last - self.first)))
        if self.shape == "cosine":
            part = (1 - math.cos(math.pi * part)) / 2
        elif self.shape == "step":
            part = float(part == 1.0)
        return self.start + (self.end - self.start) * part


def value_at(number: float | Schedule, iteration: int) -> float:
    """Returns a number, which may change over the run, at an iteration, counted from 0."""
    return number(iteration) if isinstance(number, Schedule) else number


def ends_of(number: float | Schedule) -> tuple[float, float]:
    """Returns a number, which may change over the run, at the first and the last iteration."""
    return (number.start, number.end) if isinstance(number, Schedule) else (number, number)
