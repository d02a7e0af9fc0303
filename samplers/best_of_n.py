"""The best of several samples."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Choice, Plan

from .base.flow import FlowPolicy
from .base.steering import MOST_CANDIDATES, SteeredSampler, best


@dataclass(frozen=True)
class BestOfN(SteeredSampler):
    """A sampler that keeps, of `n` samples of the `proposal`, the sample with the highest reward.

    The proposal, any sampler of flows, samples a group n times as large. Its first n samples are the candidates for the
    first kept sample, the next n those for the second, and so on.
    """

    n: Annotated[int, Field(ge=1, le=MOST_CANDIDATES)] = 4  # candidates for each sample that is kept

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        plan = self.proposed(policy, key, group_size * self.n)
        if self.n == 1:
            return plan
        return replace(plan, choices=(Choice(plan.num_tree_steps, self.n, 1, most_rewarded, self.reward),))


def most_rewarded(rewards: Tensor, keep: int, generator: torch.Generator) -> Tensor:
    """Returns the places [n, keep] of the largest last rewards of [n, of, J]: a `choices.Rule`."""
    return best(rewards[:, :, -1], keep)
