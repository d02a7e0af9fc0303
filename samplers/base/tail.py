"""Fewer and better steps behind the last random one.

Maths: docs/maths/sde-sampling.md#deterministic-solvers
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mmrl.plans.flow import SolverName, Tail


@dataclass(frozen=True)
class ShortTail:
    """The steps behind the last random one, on a coarser grid by a solver of order 2.

    MixGRPO-Flash (Li et al. 2025, arXiv 2507.21802, section 3.3): DPM-Solver++(2M), `ratio` 0.4, and 0.2 in Flash*.
    Behind random step l of T the authors' code takes floor(ratio (T - l)) points, its beginning among them and at least
    that one, evenly spaced to the end of the grid: one step fewer than points, and where it is one point none, so that
    samples of late windows stay noisy. Here there is always at least one step, and the last ends where the grid does.
    Levels between those of the grid are interpolated.
    """

    solver: SolverName = "dpmpp_2m"
    ratio: float = 0.4

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must be greater than 0 and at most 1, got {self.ratio}")

    def behind(self, sigmas: Sequence[float], last: int) -> Tail | None:
        """The tail behind step `last` of the grid `sigmas` [T + 1]; None where that is its last step."""
        begin, end = last + 1, len(sigmas) - 1
        if begin == end:
            return None
        # 0.29 * 100 is 28.999...: rounding down must not lose a whole point to the last bit
        count = max(1, math.floor(self.ratio * (end - last) + 1e-9) - 1)
        between = [_level(sigmas, begin + (end - begin) * number / count) for number in range(1, count)]
        return Tail(self.solver, (sigmas[begin], *between, sigmas[end]))


def _level(sigmas: Sequence[float], place: float) -> float:
    """The level at a place between the whole ones."""
    below = math.floor(place)
    return sigmas[below] + (place - below) * (sigmas[min(below + 1, len(sigmas) - 1)] - sigmas[below])
