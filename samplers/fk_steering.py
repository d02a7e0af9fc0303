"""Feynman-Kac steering: particles that are resampled during sampling by their rewards."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Choice, Plan

from .base.flow import FlowPolicy
from .base.steering import MOST_CANDIDATES, SteeredSampler, best, multinomial, random_steps

Potential = Literal["diff", "max", "sum"]


@dataclass(frozen=True)
class FKSteering(SteeredSampler):
    """A sampler of particles that are resampled, with replacement, before the steps `resample_at`.

    Singhal et al. 2025, arXiv 2501.06848, section 3. With r_j the reward of the clean estimate at the j-th resampling,
    a particle's potential there is exp(scale g_j): for `diff` g_j = r_j - r_(j-1), for `max` the largest of r_1 ...
    r_j, for `sum` their sum. At the end the potential is exp(scale r) divided by the product of all potentials before,
    so that with many particles samples follow p(x) exp(scale r(x)) whatever the potential. The estimates are those of
    the steps' own network calls: a sample costs `particles` times the calls of a sample of the proposal.
    """

    particles: Annotated[int, Field(ge=1, le=MOST_CANDIDATES)] = 4  # for each sample
    # Steps, counted from 0, before which particles are resampled, up to the proposal's last random step; null: each
    # fifth of the steps, as in the paper (20, 40, 60 and 80 of 100).
    resample_at: tuple[int, ...] | None = None
    # What a resampling goes by: the `diff` of the reward to that at the resampling before, the `max` of all so far, or
    # their `sum`.
    potential: Potential = "diff"
    # lambda, in 1 / units of the reward: with many particles samples follow p(x) exp(scale * reward).
    scale: Annotated[float, Field(ge=0)] = 10.0
    # At the end one particle is sampled by the last potentials (`draw`), or the `best` is taken, as in the paper's
    # tables.
    last: Literal["draw", "best"] = "draw"

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for steps that do not ascend."""
        super().__post_init__()
        places = self.resample_at
        if places is not None and (list(places) != sorted(set(places)) or min(places, default=0) < 0):
            raise ValueError(f"resample_at must be ascending steps, counted from 0, got {list(places)}")

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        plan = self.proposed(policy, key, group_size * self.particles)
        if self.particles == 1:
            return plan
        places = self._places(len(plan.steps), max(random_steps(plan.steps)))
        move = partial(resampled, potential=self.potential, scale=self.scale)
        end = partial(finished, potential=self.potential, scale=self.scale, takes_best=self.last == "best")
        choices = [Choice(place, self.particles, self.particles, move, self.reward) for place in places]
        return replace(plan, choices=(*choices, Choice(plan.num_tree_steps, self.particles, 1, end, self.reward)))

    def _places(self, num_steps: int, last: int) -> tuple[int, ...]:
        """Returns the steps before which particles are resampled; `last` is the last random step."""
        if self.resample_at is None:
            fifths = dict.fromkeys(num_steps * n // 5 for n in range(1, 5))
            return tuple(place for place in fifths if 0 < place <= last)
        if self.resample_at and self.resample_at[-1] > last:
            raise ConfigError(
                f"resample_at must be at most {last}, the proposal's last random step, got {self.resample_at[-1]}: "
                "particles that are chosen twice would stay the same"
            )
        return self.resample_at


def log_potentials(rewards: Tensor, potential: Potential, scale: float) -> Tensor:
    """Returns the logarithms [n, of, J] of the potentials at J resamplings with the rewards [n, of, J]."""
    if potential == "max":
        return scale * rewards.cummax(2).values
    if potential == "sum":
        return scale * rewards.cumsum(2)
    return scale * torch.cat([rewards[:, :, :1], rewards.diff(dim=2)], 2)


def resampled(rewards: Tensor, keep: int, generator: torch.Generator, *, potential: Potential, scale: float) -> Tensor:
    """Samples particles [n, keep] by their potentials at the last of J resamplings: a `choices.Rule`.

    Args:
        rewards: [n, of, J] of n groups of `of` particles. keep: particles of a group after it.
    """
    return multinomial(log_potentials(rewards, potential, scale)[:, :, -1], keep, generator)


def finished(
    rewards: Tensor, keep: int, generator: torch.Generator, *, potential: Potential, scale: float, takes_best: bool
) -> Tensor:
    """Chooses the samples [n, keep] of the particles at their ends: a `choices.Rule`.

    Args:
        rewards: [n, of, J]; the last are those of the ends. takes_best: whether the best are taken, not sampled.
    """
    final = rewards[:, :, -1]
    if takes_best:
        return best(final, keep)
    passed = log_potentials(rewards[:, :, :-1], potential, scale).sum(2)
    return multinomial(scale * final - passed, keep, generator)
