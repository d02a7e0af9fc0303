"""Feynman-Kac steering: particles that are drawn again on their way by what a reward says of them."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import check_count
from mmrl.plans.flow import Choice, Plan

from .base.flow import FlowPolicy
from .base.steering import MOST_CANDIDATES, SteeredSampler, best, multinomial, random_steps

Potential = Literal["diff", "max", "sum"]


@dataclass(frozen=True)
class FKSteering(SteeredSampler):
    """Each sample is one of `particles` that are drawn again, with replacement, before the steps `resample_at`.

    Singhal et al. 2025, arXiv 2501.06848, section 3. With r_j the reward of the clean estimate at the j-th drawing, a
    particle's potential there is exp(scale g_j): `diff` g_j = r_j - r_(j-1), `max` the largest of r_1 ... r_j, `sum`
    their sum. At the end it is exp(scale r) divided by all that came before, so that with many particles samples follow
    p(x) exp(scale r(x)) whatever the potential. `resample_at`: by default every fifth of the steps, as theirs (20, 40,
    60 and 80 of 100). `last`: `draw` one particle by these last potentials, or take the `best`, as the paper's tables
    do. Estimates are those of the steps' own network calls: a sample costs `particles` times those of the proposal.
    """

    particles: int = 4
    resample_at: tuple[int, ...] | None = None
    potential: Potential = "diff"
    scale: float = 10.0  # lambda, in 1 / units of the reward
    last: Literal["draw", "best"] = "draw"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("particles", self.particles, most=MOST_CANDIDATES)
        places = self.resample_at
        if places is not None and (list(places) != sorted(set(places)) or min(places, default=0) < 0):
            raise ValueError(f"resample_at must be ascending steps, counted from 0, got {list(places)}")
        if self.scale < 0:
            raise ValueError(f"scale must be at least 0, got {self.scale}")

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
        """Before which steps particles are drawn again; `last` is the last random one."""
        if self.resample_at is None:
            fifths = dict.fromkeys(num_steps * n // 5 for n in range(1, 5))
            return tuple(place for place in fifths if 0 < place <= last)
        if self.resample_at and self.resample_at[-1] > last:
            raise ConfigError(
                f"resample_at must be at most {last}, the proposal's last random step, got {self.resample_at[-1]}: "
                "particles that are drawn twice would stay the same"
            )
        return self.resample_at


def log_potentials(rewards: Tensor, potential: Potential, scale: float) -> Tensor:
    """Logarithms [n, of, J] of the potentials at J drawings with these rewards."""
    if potential == "max":
        return scale * rewards.cummax(2).values
    if potential == "sum":
        return scale * rewards.cumsum(2)
    return scale * torch.cat([rewards[:, :, :1], rewards.diff(dim=2)], 2)


def resampled(rewards: Tensor, keep: int, generator: torch.Generator, *, potential: Potential, scale: float) -> Tensor:
    """Particles [n, keep] by their potentials at the last of J drawings; rewards [n, of, J]: a `choices.Rule`."""
    return multinomial(log_potentials(rewards, potential, scale)[:, :, -1], keep, generator)


def finished(
    rewards: Tensor, keep: int, generator: torch.Generator, *, potential: Potential, scale: float, takes_best: bool
) -> Tensor:
    """Samples [n, keep] of the particles at their ends, whose rewards are the last ones: a `choices.Rule`."""
    final = rewards[:, :, -1]
    if takes_best:
        return best(final, keep)
    passed = log_potentials(rewards[:, :, :-1], potential, scale).sum(2)
    return multinomial(scale * final - passed, keep, generator)
