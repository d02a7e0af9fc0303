"""Base classes of flow samplers: the grid of noise levels, the window of random steps, and the fan of a group."""

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import MOST
from mmrl.plans.flow import Plan, Step, Transition

from .kernels import ode
from .tail import ShortTail
from .window import Window, sample_subset


class FlowPolicy(Protocol):
    """The part of a flow modality that samplers read: the noise levels of its grid."""

    def sigmas(self, kind: Literal["pipeline", "uniform"], num_steps: int) -> list[float]:
        """Returns `num_steps` + 1 noise levels, strictly decreasing from at most 1 to 0, or to the level that the
        family decodes at."""
        ...


@dataclass(frozen=True)
class FlowSampler(Checked, ABC):
    """A sampler of flow models on a grid of noise levels."""

    sample_kind: ClassVar[Literal["latents", "tokens", "turns"]] = "latents"

    num_steps: Annotated[int, Field(ge=1, le=MOST)]  # denoising steps
    # Noise levels: `pipeline` (those of the model's stock pipeline), `uniform` (the model's shift of
    # linspace(1, 1/T, T), then 0), or a list of `num_steps` + 1 numbers that fall to 0.
    sigmas: Literal["pipeline", "uniform"] | tuple[float, ...] = "pipeline"
    guidance_scale: float = 1.0  # of classifier-free guidance; 1: no guidance, one network call instead of two

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for listed sigmas that are no grid of `num_steps` steps."""
        super().__post_init__()
        if not isinstance(self.sigmas, str):
            _check_grid(self.sigmas, self.num_steps, ends_clean=True)

    @abstractmethod
    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        """Returns the plan of the group `key` of `group_size` samples; the same arguments give the same plan."""

    def grid(self, policy: FlowPolicy) -> Sequence[float]:
        """Returns the num_steps + 1 noise levels, strictly decreasing to 0, or to the end of the policy's own grid."""
        if not isinstance(self.sigmas, str):
            return self.sigmas
        sigmas = policy.sigmas(self.sigmas, self.num_steps)
        _check_grid(sigmas, self.num_steps, ends_clean=False)
        return sigmas


@dataclass(frozen=True)
class WindowedSampler(FlowSampler):
    """A flow sampler with random steps inside a window and ODE steps outside of it."""

    window: Window = field(default_factory=Window)  # which steps are random
    # Share of the random steps that are decisions, rounded down, at least one step; chosen anew for each group. The
    # other random steps only explore.
    train_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for a window that reaches beyond the grid."""
        super().__post_init__()
        check_window(self.window, self.num_steps)

    @abstractmethod
    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        """Returns the random step from `sigma` to `sigma_next` > 0; `sigma_1` is the second level of the grid."""

    def steps(self, sigmas: Sequence[float], is_random: Container[int], is_trained: Container[int]) -> tuple[Step, ...]:
        """Returns the steps of the grid: those in `is_random` are random, those in `is_trained` also decisions."""

        def step(index: int, sigma: float, sigma_next: float) -> Step:
            if index not in is_random:
                return Step(sigma, sigma_next, ode(sigma, sigma_next))
            check_not_clean(index, sigma_next)
            move = self.transition(sigma, sigma_next, sigmas[1])
            return Step(sigma, sigma_next, move, is_trained=index in is_trained)

        return tuple(step(index, *levels) for index, levels in enumerate(pairwise(sigmas)))

    def trained(self, random_steps: tuple[int, ...], key: GroupKey) -> tuple[int, ...]:
        """Returns the random steps that are decisions, ascending."""
        return sample_share(random_steps, self.train_fraction, key)


@dataclass(frozen=True)
class StochasticSampler(WindowedSampler):
    """A windowed sampler whose samples each have random steps of their own."""

    # The group starts from one latent and fans out at its first random step, so that the steps before are computed
    # once; else each sample has its own initial latent and nothing splits.
    share_noise: bool = False
    tail: ShortTail | None = None  # fewer steps behind the last random one; null: those of the grid, by Euler

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
    """Returns a share `fraction` of the steps, chosen anew for each group, ascending."""
    return sample_subset(steps, rounded_share(fraction, len(steps)), key, "trained")


def rounded_share(fraction: float, count: int) -> int:
    """Returns a share `fraction` of a count, rounded down, at least 1."""
    # 0.29 * 100 is 28.999...: rounding down must not lose a whole step to the last bit
    return max(1, math.floor(fraction * count + 1e-9))


def check_window(window: Window, num_steps: int) -> None:
    """Raises ValueError unless the window lies within the steps before the last."""
    if num_steps < 2:
        raise ValueError(f"num_steps must be at least 2, got {num_steps}: the last step is never random")
    window.bounds(num_steps)


def check_not_clean(index: int, sigma_next: float) -> None:
    """Raises ConfigError where the random step `index` would end at clean latents."""
    if sigma_next == 0:
        raise ConfigError(
            f"the last step is never random on a grid that ends at sigma 0: window.last must be at most {index} with "
            f"{index + 1} steps, got {index + 1}"
        )


def _check_grid(sigmas: Sequence[float], num_steps: int, *, ends_clean: bool) -> None:
    """Raises ValueError unless the levels fall strictly, within [0, 1], and to 0 where the grid ends clean."""
    if len(sigmas) != num_steps + 1:
        raise ValueError(f"{num_steps} steps need {num_steps + 1} sigmas, got {len(sigmas)}")
    falls = all(sigma > sigma_next for sigma, sigma_next in pairwise(sigmas))
    if not (falls and sigmas[0] <= 1 and sigmas[-1] >= 0 and (sigmas[-1] == 0 or not ends_clean)):
        raise ValueError(f"sigmas must fall strictly from at most 1 to 0, got {list(sigmas)}")
