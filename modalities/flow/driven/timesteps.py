"""The timestep of a noise level, for pipelines whose timesteps are not their noise levels times a constant."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Self

from torch import Tensor


@dataclass(frozen=True)
class Timesteps:
    """Pairs that a pipeline's own grid of many steps holds; between two of them timesteps are linear in the level."""

    levels: tuple[float, ...]  # rising, from 0
    times: tuple[float, ...]

    @classmethod
    def of(cls, levels: Tensor, times: Tensor) -> Self:
        """Returns the pairs of a grid: levels [T + 1] that fall to 0, and the timesteps [T] of all but the last."""
        rising = sorted({0.0: 0.0, **dict(zip(levels.tolist(), times.tolist(), strict=False))}.items())
        return cls(tuple(level for level, _ in rising), tuple(time for _, time in rising))

    def __call__(self, level: float) -> float:
        """Returns the timestep of a level; above the highest one, that of the highest."""
        right = min(bisect_left(self.levels, level), len(self.levels) - 1)
        if right == 0 or level >= self.levels[right]:
            return self.times[right]
        (low, high), (first, last) = self.levels[right - 1 : right + 1], self.times[right - 1 : right + 1]
        return first + (last - first) * (level - low) / (high - low)
