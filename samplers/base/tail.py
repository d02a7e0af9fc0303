"""Fewer steps of a higher order behind the last random step.

Maths: docs/maths/sde-sampling.md#deterministic-solvers
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.plans.flow import SolverName, Tail


@dataclass(frozen=True)
class ShortTail(Checked):
    """The steps behind the last random one, on a coarser grid by a solver of order 2.

    MixGRPO-Flash (Li et al. 2025, arXiv 2507.21802, section 3.3): DPM-Solver++(2M), `ratio` 0.4, and 0.2 in Flash*.
    Behind random step l of T the authors' code takes floor(ratio (T - l)) points, evenly spaced to the end of the grid;
    the first point is the beginning of the tail, and there is always that one. The steps are one fewer than the points:
    with a single point there is no step, so that samples of late windows stay noisy. Here there is always at least one
    step, and the last step ends where the grid does. Levels between those of the grid are interpolated.
    """

    solver: SolverName = "dpmpp_2m"  # as of sampler `ode`, but for `euler`
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.4  # share of the steps that are left; the paper's, 0.2 in its Flash*

    def behind(self, sigmas: Sequence[float], last: int) -> Tail | None:
        """Returns the tail behind step `last` of the grid `sigmas` [T + 1]; None where `last` is the last step."""
        begin, end = last + 1, len(sigmas) - 1
        if begin == end:
            return None
        # 0.29 * 100 is 28.999...: rounding down must not lose a whole point to the last bit
        count = max(1, math.floor(self.ratio * (end - last) + 1e-9) - 1)
        between = [_level(sigmas, begin + (end - begin) * number / count) for number in range(1, count)]
        return Tail(self.solver, (sigmas[begin], *between, sigmas[end]))


def _level(sigmas: Sequence[float], place: float) -> float:
    """Returns the noise level at a fractional place of the grid."""
    below = math.floor(place)
    return sigmas[below] + (place - below) * (sigmas[min(below + 1, len(sigmas) - 1)] - sigmas[below])
