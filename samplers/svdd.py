"""Soft value-based decoding: at every step, the better of several next states."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Choice, Plan

from .base.flow import FlowPolicy
from .base.steering import MOST_CANDIDATES, SteeredSampler, best, multinomial, random_steps


@dataclass(frozen=True)
class SVDD(SteeredSampler):
    """A sampler whose random steps sample `candidates`, of which one goes on with probability softmax(v / alpha).

    SVDD-PM (Li et al. 2024, arXiv 2408.08252, algorithm 1): the value v of a candidate is the reward of its clean
    estimate, and alpha 0 takes the best, as most of the paper's runs do. Behind its first random step a sample costs
    `candidates` times the network calls of the proposal: the estimates are those of the next steps' own calls.
    """

    candidates: Annotated[int, Field(ge=1, le=MOST_CANDIDATES)] = 4  # next states at each random step
    # In units of the reward: a candidate goes on with probability softmax(reward / alpha); 0: the best.
    alpha: Annotated[float, Field(ge=0)] = 0.0

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
        """Returns the places [n, keep] of the candidates that go on, by the last of the rewards [n, of, J].

        A `choices.Rule`.
        """
        value = rewards[:, :, -1]
        return best(value, keep) if self.alpha == 0 else multinomial(value / self.alpha, keep, generator)
