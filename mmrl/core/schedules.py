"""Numbers that change over the iterations of a run."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Shape = Literal["linear", "cosine", "step"]


@dataclass(frozen=True)
class Schedule:
    """From `start` to `end`: `start` up to the iteration `first`, `end` from `last` on.

    Between them p = (iteration - first) / (last - first) and the value is start + (end - start) s(p), with s(p) = p
    (`linear`), (1 - cos(pi p)) / 2 (`cosine`), or 0 (`step`: the end comes at once, at `last`). Iterations count from
    0. Raises ValueError for numbers that are not finite, or a `last` that is not after `first`.
    """

    start: float
    end: float
    last: int
    first: int = 0
    shape: Shape = "linear"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise ValueError(f"start and end must be finite, got {self.start} and {self.end}")
        if not 0 <= self.first < self.last:
            raise ValueError(f"needs 0 <= first < last, got first {self.first} and last {self.last}")
        if self.shape not in get_args(Shape):
            raise ValueError(f"shape must be one of {', '.join(get_args(Shape))}, got {self.shape!r}")

    def __call__(self, iteration: int) -> float:
        """Its value at an iteration."""
        part = min(1.0, max(0.0, (iteration - self.first) / (self.last - self.first)))
        if self.shape == "cosine":
            part = (1 - math.cos(math.pi * part)) / 2
        elif self.shape == "step":
            part = float(part == 1.0)
        return self.start + (self.end - self.start) * part
