"""What flow samplers share: the noise grid, the window of random steps, and how a group fans out into samples."""

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Literal, Protocol

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import check_count
from mmrl.plans.flow import Plan, Step, Transition

from .kernels import ode
from .tail import ShortTail
from .window import Window, sample_subset


class FlowPolicy(Protocol):
    """What a sampler asks of a modality: the noise levels of its grid."""

    def sigmas(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """`num_steps` + 1 noise levels, strictly decreasing from at most 1 to 0, or to where the family decodes."""
        ...


@dataclass(frozen=True)
class FlowSampler(ABC):
    """A sampler of flow models on a grid of noise levels.

    `sigmas`: `pipeline` is the grid of the model's stock pipeline, `uniform` its shift of linspace(1, 1/T, T), then 0;
    a list of num_steps + 1 numbers is used as it is. `guidance_scale`: of classifier-free guidance; 1 is without.
    """

    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "latents"

    num_steps: int
    sigmas: Literal["pipeline", "uniform"] | tuple[float, ...] = "pipeline"
    guidance_scale: float = 1.0

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)
        if not isinstance(self.sigmas, str):
            _check_grid(self.sigmas, self.num_steps, ends_clean=True)

    @abstractmethod
    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        """How the group `key` of `group_size` samples is drawn; the same for the same arguments."""

    def grid(self, policy: FlowPolicy) -> Sequence[float]:
        """The num_steps + 1 noise levels, strictly decreasing to 0, or to where the policy's own grid ends."""
        if not isinstance(self.sigmas, str):
            return self.sigmas
        sigmas = policy.sigmas(self.sigmas, self.num_steps)
        _check_grid(sigmas, self.num_steps, ends_clean=False)
        return sigmas


@dataclass(frozen=True)
class WindowedSampler(FlowSampler):
    """A flow sampler with random steps inside a window and ODE steps elsewhere.

    `train_fraction`: share of the random steps that are decisions, rounded down, at least one; drawn anew for each
    group. The other random steps only explore.
    """

    window: Window = field(default_factory=Window)
    train_fraction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.window, self.num_steps)
        check_positive("train_fraction", self.train_fraction, at_most=1)

    @abstractmethod
    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        """The random step from `sigma` to `sigma_next` > 0; `sigma_1` is the second level of the grid."""

    def steps(self, sigmas: Sequence[float], is_random: Container[int], is_trained: Container[int]) -> tuple[Step, ...]:
        """The steps of the grid, of which some are random, and some of these trained."""

        def step(index: int, sigma: float, sigma_next: float) -> Step:
            if index not in is_random:
                return Step(sigma, sigma_next, ode(sigma, sigma_next))
            check_not_clean(index, sigma_next)
            move = self.transition(sigma, sigma_next, sigmas[1])
            return Step(sigma, sigma_next, move, is_trained=index in is_trained)

        return tuple(step(index, *levels) for index, levels in enumerate(pairwise(sigmas)))

    def trained(self, random_steps: tuple[int, ...], key: GroupKey) -> tuple[int, ...]:
        """Those of the random steps that are decisions."""
        return sample_share(random_steps, self.train_fraction, key)


@dataclass(frozen=True)
class StochasticSampler(WindowedSampler):
    """A sampler whose samples have their own random steps.

    `share_noise`: the group starts from one latent and fans out at its first random step, so that what lies before is
    computed once; otherwise each sample has its own initial latent and nothing splits. `tail`: fewer steps by a solver
    behind the last random one.
    """

    share_noise: bool = False
    tail: ShortTail | None = None

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        sigmas, random_steps = self.grid(policy), self.window.steps(self.num_steps, key)
        steps = self.steps(sigmas, random_steps, self.trained(random_steps, key))
        tail = None if self.tail is None else self.tail.behind(sigmas, random_steps[-1])
        if tail is not None:
            steps = steps[: random_steps[-1] + 1]
        if not self.share_noise:
            return Plan(group_size, steps, self.guidance_scale, tail=tail)
        first = random_steps[0]
        fan = replace(steps[first], branch=group_size)
        return Plan(1, (*steps[:first], fan, *steps[first + 1 :]), self.guidance_scale, tail=tail)


def sample_share(steps: range | tuple[int, ...], fraction: float, key: GroupKey) -> tuple[int, ...]:
    """So large a share of the steps, drawn anew for each group, ascending."""
    return sample_subset(steps, rounded_share(fraction, len(steps)), key, "trained")


def rounded_share(fraction: float, count: int) -> int:
    """So large a share of a count, rounded down, at least one."""
    # 0.29 * 100 is 28.999...: rounding down must not lose a whole step to the last bit
    return max(1, math.floor(fraction * count + 1e-9))


def check_window(window: Window, num_steps: int) -> None:
    """ValueError unless the window lies within the steps before the last."""
    if num_steps < 2:
        raise ValueError(f"num_steps must be at least 2, got {num_steps}: the last step is never random")
    window.bounds(num_steps)


def check_not_clean(index: int, sigma_next: float) -> None:
    """ConfigError where the random step `index` would end at clean latents."""
    if sigma_next == 0:
        raise ConfigError(
            f"the last step is never random on a grid that ends at sigma 0: window.last must be at most {index} with "
            f"{index + 1} steps, got {index + 1}"
        )


def check_positive(name: str, value: float, *, at_most: float = math.inf) -> None:
    """ValueError unless 0 < value <= at_most."""
    if not 0 < value <= at_most:
        allowed = "greater than 0" if at_most == math.inf else f"greater than 0 and at most {at_most}"
        raise ValueError(f"{name} must be {allowed}, got {value}")


def _check_grid(sigmas: Sequence[float], num_steps: int, *, ends_clean: bool) -> None:
    if len(sigmas) != num_steps + 1:
        raise ValueError(f"{num_steps} steps need {num_steps + 1} sigmas, got {len(sigmas)}")
    falls = all(sigma > sigma_next for sigma, sigma_next in pairwise(sigmas))
    if not (falls and sigmas[0] <= 1 and sigmas[-1] >= 0 and (sigmas[-1] == 0 or not ends_clean)):
        raise ValueError(f"sigmas must fall strictly from at most 1 to 0, got {list(sigmas)}")
