"""The sampler of Neighbor GRPO: groups of deterministic samples from initial latents near each other."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Neighbors, Plan, Step

from .base.flow import FlowPolicy, rounded_share, sample_share
from .base.kernels import ode
from .base.window import sample_subset
from .ode import ODE


@dataclass(frozen=True)
class Neighbor(ODE):
    """The steps of `ode` from initial noise sqrt(1 - spread^2) base + spread own, with one base for the group.

    He et al. 2025, "Neighbor GRPO: Contrastive ODE Policy Optimization Aligns Flow Models", arXiv 2511.16955, eq. 7:
    spread 0.3 is the best of their table 4, and no step adds noise, so solvers of order 2 do (theirs: `dpmpp_2m`, 8
    steps). A group explores its neighbourhood without a random step, so losses on the forward process learn from it too
    (`anchors: 0` records nothing for other losses).

    The `group_size` members begin near each other and are compared (theirs: 12). At the state of an anchor the update
    takes one Euler step with the trained weights; the next states of all members are the choices from there (their
    symmetric anchors; 4 is the best of their table 5). Loss `neighbor` makes a policy of the distances. Any other loss
    on decisions takes the next states for Gaussian samples around the anchor's: their section 3.2, squared distances
    weighted by advantages.

    `early_fraction` is ours: on the shapes lab the first half of the steps teaches, and the second half harms
    (docs/lab.md). Both fractions are rounded down, to at least one step. Half of all steps is the paper's count of
    evaluations (1.33 = 4 anchors / 12 members * 4 steps of 8).
    """

    spread: Annotated[float, Field(ge=0, le=1)] = 0.3  # 1: initial latents of their own, as `ode`
    # Members, chosen anew for each group, that an update calls the network for; all members of a smaller group.
    anchors: Annotated[int, Field(ge=0)] = 4
    early_fraction: Annotated[float, Field(gt=0, le=1)] = (
        1.0  # share of the steps, from noise on, that may have anchors
    )
    train_fraction: Annotated[float, Field(gt=0, le=1)] = 0.5  # share of these, chosen anew for each group, that do
    # Squared distances are divided by it; their unit is that of `modality.reduction`, in the paper `sum` (and 1).
    temperature: Annotated[float, Field(gt=0)] = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for anchors with a solver of two calls for each step."""
        super().__post_init__()
        if self.solver == "heun" and self.anchors:
            raise ValueError("anchors go with solvers that make one call for a step, got solver heun")

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        near = Neighbors(self.spread)
        if self.anchors:
            anchors = sample_subset(range(group_size), min(self.anchors, group_size), key, "anchors")
            near = Neighbors(self.spread, anchors, self._moves(policy, key))
        return replace(super().plan(policy, key, group_size), neighbors=near)

    def _moves(self, policy: FlowPolicy, key: GroupKey) -> tuple[tuple[int, Step], ...]:
        """Returns the steps from anchors, each with its number in the grid."""
        levels = list(pairwise(self.grid(policy)))
        early = range(rounded_share(self.early_fraction, self.num_steps))
        std = math.sqrt(self.temperature / 2)  # of the Gaussian with the density exp(-distance / temperature)
        return tuple(
            (number, Step(*levels[number], replace(ode(*levels[number]), std=std)))
            for number in sample_share(early, self.train_fraction, key)
        )
