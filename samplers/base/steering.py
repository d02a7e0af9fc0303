"""The base class of samplers that choose among the states of another sampler by a reward.

Maths: docs/maths/sde-sampling.md#steering-without-training
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Fitted, Placement, Prepared, Reward, Sampler, Twinned
from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Neighbors, Plan, Step

from .flow import FlowPolicy

MOST_CANDIDATES = 1_000_000  # sampled for each sample that is kept


@dataclass(frozen=True)
class SteeredSampler(Checked, ABC):
    """A sampler of flow models that samples as `proposal` does and continues the samples that `reward` prefers.

    The reward scores images decoded from the clean latents that the network estimates, with the targets of the prompt.
    No step is a decision: the sampler is for evaluation, and for losses on the forward process. All samples have their
    own initial latents, so the proposal shares no noise.
    """

    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "latents"

    reward: Reward  # a section such as `{name: shapes}`, of the rewards that judge single samples
    # The section of the sampler that is steered; it samples each sample alone (`share_noise: false`, no tree).
    proposal: Sampler

    def __post_init__(self) -> None:
        """Raises ConfigError for a reward that cannot steer, and for a proposal of anything but latents.

        A reward cannot steer where it does not judge samples, or where it is fitted in the run.
        """
        super().__post_init__()
        if self.reward.granularity != "sample":
            raise ConfigError(f"reward judges each {self.reward.granularity}, and steering needs one of samples")
        if isinstance(self.reward, Fitted):
            raise ConfigError(
                "reward learns from the scores of a run, which a sampler does not see; give the reward inside of it"
            )
        if self.proposal.sample_kind != "latents":
            raise ConfigError(
                f"proposal samples {self.proposal.sample_kind}, and steering goes with samplers of latents"
            )

    def prepare(self, placement: Placement) -> None:
        """Loads the weights of the reward, if it has some."""
        if isinstance(self.reward, Prepared):
            self.reward.prepare(placement)

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same sampler with the random twin of the reward, if the reward has one."""
        return replace(self, reward=self.reward.tiny(seed, folder)) if isinstance(self.reward, Twinned) else self

    @abstractmethod
    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        """Returns the plan of the group `key` of `group_size` samples."""

    def proposed(self, policy: FlowPolicy, key: GroupKey, count: int) -> Plan:
        """Returns the proposal's plan of `count` samples, without decisions. Raises ConfigError for a tree."""
        plan = self.proposal.plan(policy, key, count)
        if not isinstance(plan, Plan) or plan.roots != count or plan.forks or plan.choices:
            raise ConfigError(
                "proposal must sample each sample alone: no tree, share_noise false, no images of the data"
            )
        near = plan.neighbors and Neighbors(plan.neighbors.spread)
        return replace(plan, steps=tuple(replace(step, is_trained=False) for step in plan.steps), neighbors=near)


def random_steps(steps: tuple[Step, ...]) -> list[int]:
    """Returns the places of the random steps. Raises ConfigError where there are none."""
    places = [number for number, step in enumerate(steps) if step.is_random]
    if not places:
        raise ConfigError(
            "proposal must make random steps, as flow_sde and ddim do: without, all children of a state are the same"
        )
    return places


def multinomial(log_weights: Tensor, keep: int, generator: torch.Generator) -> Tensor:
    """Returns `keep` places [n, keep], each sampled independently with probabilities softmax(log_weights [n, of])."""
    return torch.multinomial(log_weights.softmax(1), keep, replacement=True, generator=generator)


def best(rewards: Tensor, keep: int) -> Tensor:
    """Returns the place of the largest reward [n, keep], `keep` times; the first of equal ones."""
    return rewards.argmax(1, keepdim=True).expand(-1, keep)
