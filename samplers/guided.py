"""Sampling that the gradient of a reward guides."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Plan, RewardGuidance

from .base.flow import FlowPolicy
from .base.steering import SteeredSampler


@dataclass(frozen=True)
class Guided(SteeredSampler):
    """A sampler that takes v - scale * sigma / (1 - sigma) * dr/dx for the network's velocity v at each guided step.

    Flow-NRG, Liu et al. 2025, "Improving Video Generation with Human Feedback", arXiv 2501.13918, section 4: samples
    lean towards p(x) exp(scale r(x)). The paper trains a reward on noisy latents. Here any differentiable reward judges
    the clean latents x - sigma v that the network estimates, decoded, with v held: one decoding with a graph for each
    guided step, and no graph of the network. Weights of several objectives: the reward `weighted`, whose weights are
    then the scales of each.

    Raises ConfigError for a reward without a gradient, and for guided steps that the proposal does not make.
    """

    # In 1 / units of the reward; 0 samples as the proposal does. The paper's is the user's to choose.
    scale: Annotated[float, Field(ge=0)]
    first: Annotated[int, Field(ge=0)] = 1  # the first guided step, counted from 0; at pure noise the force is infinite
    last: Annotated[int, Field(ge=1)] | None = None  # the step before which guidance ends; null: all further steps

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.reward.differentiable:
            raise ConfigError(f"reward {type(self.reward).__name__} has no gradient to guide by")

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        plan = self.proposed(policy, key, group_size)
        if self.scale == 0:
            return plan
        levels, last = plan.paths[0].levels, self.last
        end = len(levels) if last is None else min(last, len(levels))
        if self.first >= end or levels[self.first] >= 1:
            below = next((number for number, level in enumerate(levels) if level < 1), len(levels))
            raise ConfigError(
                f"guided steps must lie in [{below}, {len(levels)}), behind pure noise, got first {self.first} and last"
                f" {last}"
            )
        return replace(plan, reward_guidance=RewardGuidance(self.reward, self.scale, self.first, end))
