"""Groups of flows that begin near one another: how near, and where their ways are compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from mmrl.plans.steps import Step


@dataclass(frozen=True)
class Neighbors:
    """The members of a group begin at sqrt(1 - spread^2) base + spread own: one base noise, and noise of each.

    Their variance is that of the noise. A spread of 1 is noise of their own, one of 0 the same for all.

    A decision is which member to go on as: at each network call of `moves` the step from the state of each member in
    `anchors` says where that one would be next, and the next states of all members stand beside it as if drawn from
    there. So one call has as many draws as the group has members. The std of a step, which is not added to anything, is
    how far off such a draw may be.
    """

    spread: float
    anchors: tuple[int, ...] = ()  # members, ascending
    moves: tuple[tuple[int, Step], ...] = ()  # by the number of the network call, ascending

    def __post_init__(self) -> None:
        if not 0 <= self.spread <= 1:
            raise ValueError(f"spread must be within [0, 1], got {self.spread}")
        numbers = [number for number, _ in self.moves]
        if bool(numbers) != bool(self.anchors) or numbers != sorted(set(numbers)):
            raise ValueError(f"anchors and ascending calls go together, got {list(self.anchors)} and calls {numbers}")
        if list(self.anchors) != sorted(set(self.anchors)) or min(self.anchors, default=0) < 0:
            raise ValueError(f"anchors are members of a group, ascending, got {list(self.anchors)}")
        if not all(step.is_decision and step.branch == 1 for _, step in self.moves):
            raise ValueError("the step from an anchor has a std above 0 and one child")

    def check(self, roots: int, levels: Sequence[float]) -> None:
        """ValueError unless a group of so many members has the anchors and makes the steps, at levels [calls + 1]."""
        if self.anchors[-1] >= roots:
            raise ValueError(f"anchors are members of a group of {roots}, got {list(self.anchors)}")
        ways = list(pairwise(levels))
        for number, step in self.moves:
            if not (0 <= number < len(ways) and ways[number] == (step.sigma, step.sigma_next)):
                raise ValueError(f"the step from an anchor at call {number} must lead as that of the plan, got {step}")

    def mixed(self, base: Tensor, own: Tensor) -> Tensor:
        """The initial noise of n members [n, ...], of the base [...] and what is their own [n, ...]."""
        return math.sqrt(1 - self.spread**2) * base + self.spread * own

    def move(self, number: int) -> Step | None:
        """The step at which anchors are compared with the members behind a network call, if they are."""
        return next((step for call, step in self.moves if call == number), None)

    @property
    def num_calls(self) -> int:
        """Network calls of one pass over the decisions."""
        return len(self.anchors) * len(self.moves)
