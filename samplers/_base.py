"""What flow samplers share: the noise grid, the window of random steps, and how a group fans out into samples."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Literal, Protocol

from mmrl.keys import GroupKey
from mmrl.plans import Plan, Step, Transition
from mmrl.samplers._kernels import ode
from mmrl.samplers._window import Window, draw_subset


class FlowPolicy(Protocol):
    """What a sampler asks of a modality: the noise levels of its grid."""

    def sigmas(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """`num_steps` + 1 noise levels, strictly decreasing from at most 1 to 0."""
        ...


@dataclass(frozen=True)
class FlowSampler(ABC):
    """A sampler of flow models on a grid of noise levels.

    `sigmas`: `pipeline` is the grid of the model's stock pipeline, `uniform` its shift of linspace(1, 1/T, T), then 0;
    a list of num_steps + 1 numbers is used as it is. `guidance_scale`: of classifier-free guidance; 1 is without.
    """

    draws: ClassVar[Literal["latents", "tokens", "turns"]] = "latents"

    num_steps: int
    sigmas: Literal["pipeline", "uniform"] | tuple[float, ...] = "pipeline"
    guidance_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {self.num_steps}")
        if not isinstance(self.sigmas, str):
            _check_grid(self.sigmas, self.num_steps)

    @abstractmethod
    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        """How the group `key` of `group_size` samples is drawn; the same for the same arguments."""

    def grid(self, policy: FlowPolicy) -> Sequence[float]:
        """The num_steps + 1 noise levels, strictly decreasing to 0."""
        if not isinstance(self.sigmas, str):
            return self.sigmas
        sigmas = policy.sigmas(self.sigmas, self.num_steps)
        _check_grid(sigmas, self.num_steps)
        return sigmas


@dataclass(frozen=True)
class StochasticSampler(FlowSampler):
    """A flow sampler with random steps inside a window and ODE steps elsewhere.

    `share_noise`: the group starts from one latent and fans out at its first random step, so that what lies before is
    computed once; otherwise each sample has its own initial latent and nothing splits.
    `train_fraction`: share of the random steps that are decisions, rounded down, at least one; drawn anew for each
    group. The other random steps only explore.
    """

    share_noise: bool = False
    window: Window = field(default_factory=Window)
    train_fraction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_steps < 2:
            raise ValueError(f"num_steps must be at least 2, got {self.num_steps}: the last step is never random")
        self.window.bounds(self.num_steps)
        check_positive("train_fraction", self.train_fraction, at_most=1)

    @abstractmethod
    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        """The random step from `sigma` to `sigma_next` > 0; `sigma_1` is the second level of the grid."""

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        sigmas = self.grid(policy)
        is_random = self.window.steps(self.num_steps, key)
        is_trained = self._trained(is_random, key)

        def step(index: int, sigma: float, sigma_next: float) -> Step:
            if index not in is_random:
                return Step(sigma, sigma_next, ode(sigma, sigma_next))
            transition = self.transition(sigma, sigma_next, sigmas[1])
            fans_out = self.share_noise and index == is_random[0]
            return Step(sigma, sigma_next, transition, group_size if fans_out else 1, index in is_trained)

        steps = tuple(step(index, *levels) for index, levels in enumerate(pairwise(sigmas)))
        return Plan(1 if self.share_noise else group_size, steps, self.guidance_scale)

    def _trained(self, random_steps: tuple[int, ...], key: GroupKey) -> tuple[int, ...]:
        # 0.29 * 100 is 28.999...: rounding down must not lose a whole step to the last bit
        count = max(1, math.floor(self.train_fraction * len(random_steps) + 1e-9))
        return draw_subset(random_steps, count, key, "trained")


def check_positive(name: str, value: float, *, at_most: float = math.inf) -> None:
    """ValueError unless 0 < value <= at_most."""
    if not 0 < value <= at_most:
        allowed = "greater than 0" if at_most == math.inf else f"greater than 0 and at most {at_most}"
        raise ValueError(f"{name} must be {allowed}, got {value}")


def _check_grid(sigmas: Sequence[float], num_steps: int) -> None:
    if len(sigmas) != num_steps + 1:
        raise ValueError(f"{num_steps} steps need {num_steps + 1} sigmas, got {len(sigmas)}")
    falls = all(sigma > sigma_next for sigma, sigma_next in pairwise(sigmas))
    if not (falls and sigmas[0] <= 1 and sigmas[-1] == 0):
        raise ValueError(f"sigmas must fall strictly from at most 1 to 0, got {list(sigmas)}")
