"""The best of several samples."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.core.keys import GroupKey
from mmrl.core.numerics import check_count
from mmrl.plans.flow import Choice, Plan

from .base.flow import FlowPolicy
from .base.steering import MOST_CANDIDATES, SteeredSampler, best


@dataclass(frozen=True)
class BestOfN(SteeredSampler):
    """Draws `n` samples for each one by the `proposal`, any sampler of flows, and keeps the one that is rewarded most.

    The n of the first sample are the first n that the proposal draws of a group n times as large, and so on.
    """

    n: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("n", self.n, most=MOST_CANDIDATES)

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        plan = self.proposed(policy, key, group_size * self.n)
        if self.n == 1:
            return plan
        return replace(plan, choices=(Choice(plan.num_tree_steps, self.n, 1, most_rewarded, self.reward),))


def most_rewarded(rewards: Tensor, keep: int, generator: torch.Generator) -> Tensor:
    """The states of the largest last rewards of [n, of, J]: a `choices.Rule`."""
    return best(rewards[:, :, -1], keep)
