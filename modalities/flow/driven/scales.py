"""Pipelines that are a flow in another scale: what their noise levels, states and outputs are as those of a flow.

A flow's state is x = (1 - sigma) clean + sigma noise, its network predicts noise - clean, and sigma falls from 1.
Euler's step leads to the same state in all of these scales: it mixes the same two ends anew.

Maths: docs/maths/flow-matching.md#diffusion-models-as-flows
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from ..variance_preserving import NoiseSchedule, constant_variance, flow_scale
from .solver import has_constant_variance


@dataclass(frozen=True)
class Scale:
    """From a pipeline's noise levels, states [n, ...] and outputs [n, ...] to those of a flow, at sigma [n].

    This class is the scale of a flow itself, where nothing changes.
    """

    has_own_levels: ClassVar[bool] = False  # the grid is the pipeline's; uniform ones are not known
    is_discrete: ClassVar[bool] = False  # the network knows the noise levels of its training only

    num_trailing_steps: int = 0  # steps of a call that lead nowhere, at its end
    first_deviation: float = 1.0  # standard deviation of the first state, as the pipeline makes it

    @property
    def ends_without_noise(self) -> bool:
        """Returns whether every grid ends at 0."""
        return not self.is_discrete and self.num_trailing_steps == 0

    @property
    def offline_levels(self) -> tuple[float, ...]:
        """Returns the noise levels, falling, at which images that the data brings are trained; (): all in [0, 1]."""
        return ()

    def level(self, own: Tensor) -> Tensor:
        """Returns the flow's sigma of levels of the pipeline."""
        return own

    def own_level(self, sigma: Tensor) -> Tensor:
        """Returns the pipeline's levels: the inverse."""
        return sigma

    def nearest(self, sigma: Tensor) -> Tensor:
        """Returns the nearest noise levels at which the network was trained."""
        return sigma

    def first(self, noise: Tensor, sigma: Tensor) -> Tensor:
        """Returns the flow's first states from standard normal noise."""
        return noise

    def state(self, own: Tensor, sigma: Tensor) -> Tensor:
        """Returns the flow's states of states of the pipeline."""
        return own

    def own_state(self, latents: Tensor, sigma: Tensor) -> Tensor:
        """Returns the pipeline's states: the inverse."""
        return latents

    def velocity(self, output: Tensor, latents: Tensor, sigma: Tensor) -> Tensor:
        """Returns noise - clean from what the pipeline gives its scheduler, for the flow's latents."""
        return output


@dataclass(frozen=True)
class Rising(Scale):
    """Levels that say how much is clean, from 0 to 1, and a network that predicts clean - noise, as Mochi's."""

    has_own_levels: ClassVar[bool] = True

    def level(self, own: Tensor) -> Tensor:
        return 1 - own

    def own_level(self, sigma: Tensor) -> Tensor:
        return 1 - sigma

    def velocity(self, output: Tensor, latents: Tensor, sigma: Tensor) -> Tensor:
        return -output


@dataclass(frozen=True)
class ExplodingVariance(Scale):
    """States y = clean + s noise, with s up to 80, and (y - clean) / s for the scheduler, as Cosmos-Predict2's.

    With sigma = s / (1 + s), y / (1 + s) is a flow's state (Karras et al. 2022, arXiv 2206.00364, for y and s).
    """

    has_own_levels: ClassVar[bool] = True

    def level(self, own: Tensor) -> Tensor:
        return own / (1 + own)

    def own_level(self, sigma: Tensor) -> Tensor:
        return sigma / (1 - sigma)

    def first(self, noise: Tensor, sigma: Tensor) -> Tensor:
        return noise * _column(sigma, noise)

    def state(self, own: Tensor, sigma: Tensor) -> Tensor:
        return own * (1 - _column(sigma, own))

    def own_state(self, latents: Tensor, sigma: Tensor) -> Tensor:
        return latents / (1 - _column(sigma, latents))

    def velocity(self, output: Tensor, latents: Tensor, sigma: Tensor) -> Tensor:
        return (output - latents) / (1 - _column(sigma, latents))


@dataclass(frozen=True)
class ConstantVariance(Scale):
    """States alpha clean + s noise with alpha^2 + s^2 = 1, of models that know the levels of their training only."""

    has_own_levels: ClassVar[bool] = True
    is_discrete: ClassVar[bool] = True

    schedule: NoiseSchedule = field(kw_only=True)

    @property
    def offline_levels(self) -> tuple[float, ...]:
        return tuple(self.schedule.levels.flip(0).tolist())

    def nearest(self, sigma: Tensor) -> Tensor:
        return self.schedule.nearest(sigma)

    def first(self, noise: Tensor, sigma: Tensor) -> Tensor:
        return flow_scale(noise, sigma)

    def state(self, own: Tensor, sigma: Tensor) -> Tensor:
        return flow_scale(own, sigma)

    def own_state(self, latents: Tensor, sigma: Tensor) -> Tensor:
        return constant_variance(latents, sigma)

    def velocity(self, output: Tensor, latents: Tensor, sigma: Tensor) -> Tensor:
        return self.schedule.velocity(output, latents, sigma)


def scale_of(scheduler: Any) -> Scale:
    """Returns the scale of a pipeline with a scheduler that `solver.flow_scheduler` returns."""
    if has_constant_variance(scheduler):
        return ConstantVariance(schedule=NoiseSchedule.of(scheduler))
    config = scheduler.config
    if config.get("invert_sigmas"):
        return Rising()
    if (highest := config.get("sigma_max") or 1) > 1:
        # with this setting, the pipeline makes its last level the one before: a step of no length
        return ExplodingVariance(int(config.get("final_sigmas_type") == "sigma_min"), highest)
    return Scale()


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))
