"""What samplers share that choose among the states of another sampler by a reward.

Maths: docs/maths/sde-sampling.md#steering-without-training
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, Placement, Prepared, Reward, Sampler, Twinned
from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Plan, Step
from mmrl.plans.neighbors import Neighbors

from .flow import FlowPolicy

MOST_CANDIDATES = 1_000_000  # drawn for each sample


@dataclass(frozen=True)
class SteeredSampler(ABC):
    """A sampler of flow models that draws as `proposal` does and lets the better samples go on, as `reward` says.

    The reward judges what is decoded of the clean latents that the network estimates, with the targets of the prompt.
    Nothing of it is a decision: it is for evaluation, and for losses on the forward process. All samples have their own
    initial latents, so the proposal shares no noise.
    """

    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "latents"

    reward: Reward
    proposal: Sampler

    def __post_init__(self) -> None:
        if self.reward.granularity != "sample":
            raise ConfigError(f"reward judges each {self.reward.granularity}, and steering needs one of samples")
        if self.proposal.sample_kind != "latents":
            raise ConfigError(f"proposal draws {self.proposal.sample_kind}, and steering goes with samplers of latents")

    def prepare(self, placement: Placement) -> None:
        """Loads the weights of the reward, if it has some."""
        if isinstance(self.reward, Prepared):
            self.reward.prepare(placement)

    def tiny(self, seed: int, folder: Path) -> Self:
        """The same with the random twin of the reward, if it has one."""
        return replace(self, reward=self.reward.tiny(seed, folder)) if isinstance(self.reward, Twinned) else self

    @abstractmethod
    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        """How the group `key` of `group_size` samples is drawn."""

    def proposed(self, policy: FlowPolicy, key: GroupKey, count: int) -> Plan:
        """The proposal's plan of `count` samples, without decisions. Raises ConfigError for one that is a tree."""
        plan = self.proposal.plan(policy, key, count)
        if not isinstance(plan, Plan) or plan.roots != count or plan.forks or plan.choices:
            raise ConfigError("proposal must draw each sample alone: no tree, share_noise false, nothing given")
        near = plan.neighbors and Neighbors(plan.neighbors.spread)
        return replace(plan, steps=tuple(replace(step, is_trained=False) for step in plan.steps), neighbors=near)


def random_steps(steps: tuple[Step, ...]) -> list[int]:
    """Places of the random ones. Raises ConfigError where there are none."""
    found = [number for number, step in enumerate(steps) if step.is_random]
    if not found:
        raise ConfigError(
            "proposal must make random steps, as flow_sde and ddim do: else all that goes on from one state is alike"
        )
    return found


def multinomial(log_weights: Tensor, keep: int, generator: torch.Generator) -> Tensor:
    """`keep` places [n, keep], each drawn alone with probabilities softmax(log_weights [n, of])."""
    return torch.multinomial(log_weights.softmax(1), keep, replacement=True, generator=generator)


def best(rewards: Tensor, keep: int) -> Tensor:
    """The place of the largest [n, keep], the first of equals, `keep` times."""
    return rewards.argmax(1, keepdim=True).expand(-1, keep)
