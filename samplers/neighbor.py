"""Groups of deterministic samples that begin near one another, and what is learned from their ways."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Neighbors, Plan, Step

from .base.flow import FlowPolicy, check_positive, rounded_share, sample_share
from .base.kernels import ode
from .base.window import sample_subset
from .ode import ODE


@dataclass(frozen=True)
class Neighbor(ODE):
    """The steps of `ode`, from initial noise sqrt(1 - spread^2) base + spread own, the base one for the group.

    He et al. 2025, "Neighbor GRPO: Contrastive ODE Policy Optimization Aligns Flow Models", arXiv 2511.16955, eq. 7:
    spread 0.3 is the best of their table 4, and no step adds noise, so solvers of order 2 do (theirs: `dpmpp_2m`, 8
    steps). What a group explores is its neighbourhood; it needs no random step, so losses on the forward process learn
    from it too (`anchors: 0` records nothing for others).

    `group_size`: members that begin near one another, go on side by side, and are compared (theirs: 12).
    `anchors`: how many of them (all of a smaller group), drawn anew for each group, the network is called for in an
    update: at the state of an anchor the trained weights say, by one Euler step, where it would be next, and the next
    states of all members are what could have been drawn from there (their symmetric anchors; 4 is the best of their
    table 5). Loss `neighbor` makes a policy of it. Any other on decisions takes the same for Gaussian draws around the
    anchor: their section 3.2, squared distances weighted by advantages.
    `early_fraction`: share of the steps, from the noise on, at which anchors may be taken; ours. On the shapes lab the
    first half of the steps teaches, and the other one harms (docs/lab.md).
    `train_fraction`: share of these, drawn anew for each group, at which anchors are taken. Both are rounded down, to
    at least one step. Half of all is what their count of evaluations comes to (1.33 = 4 anchors / 12 members * 4 steps
    of 8).
    `temperature`: divides squared distances, which are in the unit of the policy's `reduction`; with `sum` theirs is 1.

    Raises ValueError for settings out of range.
    """

    spread: float = 0.3
    anchors: int = 4
    early_fraction: float = 1.0
    train_fraction: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.spread <= 1:
            raise ValueError(f"spread must be within [0, 1], got {self.spread}")
        if self.anchors < 0:
            raise ValueError(f"anchors must be at least 0, got {self.anchors}")
        check_positive("early_fraction", self.early_fraction, at_most=1)
        check_positive("train_fraction", self.train_fraction, at_most=1)
        check_positive("temperature", self.temperature)
        if self.solver == "heun" and self.anchors:
            raise ValueError("anchors go with solvers that make one call for a step, got solver heun")

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        near = Neighbors(self.spread)
        if self.anchors:
            anchors = sample_subset(range(group_size), min(self.anchors, group_size), key, "anchors")
            near = Neighbors(self.spread, anchors, self._moves(policy, key))
        return replace(super().plan(policy, key, group_size), neighbors=near)

    def _moves(self, policy: FlowPolicy, key: GroupKey) -> tuple[tuple[int, Step], ...]:
        """The steps from anchors, by their numbers."""
        levels = list(pairwise(self.grid(policy)))
        early = range(rounded_share(self.early_fraction, self.num_steps))
        std = math.sqrt(self.temperature / 2)  # of the Gaussian with the density exp(-distance / temperature)
        return tuple(
            (number, Step(*levels[number], replace(ode(*levels[number]), std=std)))
            for number in sample_share(early, self.train_fraction, key)
        )
