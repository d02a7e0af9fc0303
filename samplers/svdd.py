"""Soft value-based decoding: the better of several next states, at every step."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.core.keys import GroupKey
from mmrl.core.numerics import check_count
from mmrl.plans.flow import Choice, Plan

from .base.flow import FlowPolicy
from .base.steering import MOST_CANDIDATES, SteeredSampler, best, multinomial, random_steps


@dataclass(frozen=True)
class SVDD(SteeredSampler):
    """Each random step draws `candidates`, of which one goes on with probability softmax(v / alpha).

    SVDD-PM (Li et al. 2024, arXiv 2408.08252, algorithm 1): the value v of a candidate is the reward of its clean
    estimate, and alpha 0 takes the best, as most of the paper's runs do. Behind its first random step a sample costs
    `candidates` times the network calls of the proposal: the estimates are those of the next steps' own calls.
    """

    candidates: int = 4
    alpha: float = 0.0  # in units of the reward

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("candidates", self.candidates, most=MOST_CANDIDATES)
        if self.alpha < 0:
            raise ValueError(f"alpha must be at least 0, got {self.alpha}")

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        plan = self.proposed(policy, key, group_size)
        if self.candidates == 1:
            return plan
        steps, places = list(plan.steps), random_steps(plan.steps)
        for place in places:
            steps[place] = replace(steps[place], branch=self.candidates)
        choices = tuple(Choice(place + 1, self.candidates, 1, self.rule, self.reward) for place in places)
        return replace(plan, steps=tuple(steps), choices=choices)

    def rule(self, rewards: Tensor, keep: int, generator: torch.Generator) -> Tensor:
        """A `choices.Rule` of the last rewards of [n, of, J]."""
        value = rewards[:, :, -1]
        return best(value, keep) if self.alpha == 0 else multinomial(value / self.alpha, keep, generator)
