"""Pipelines that are a flow in another scale: what their noise levels, states and outputs are as those of a flow.

A flow's state is x = (1 - sigma) clean + sigma noise, its network predicts noise - clean, and sigma falls from 1.
Euler's step leads to the same state in all of these scales: it mixes the same two ends anew.

Maths: docs/maths/flow-matching.md#diffusion-models-as-flows
"""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class Scale(Protocol):
    """From a pipeline's noise levels, states [n, ...] and outputs [n, ...] to those of a flow, at sigma [n]."""

    # steps of a call that lead nowhere, at its end
    @property
    def num_trailing_steps(self) -> int: ...
    def level(self, own: Tensor) -> Tensor:
        """Returns the flow's sigma of levels of the pipeline."""
        ...

    def own_level(self, sigma: Tensor) -> Tensor:
        """Returns the pipeline's levels: the inverse."""
        ...

    def first(self, noise: Tensor, sigma: Tensor) -> Tensor:
        """Returns the flow's first states from standard normal noise."""
        ...

    def state(self, own: Tensor, sigma: Tensor) -> Tensor:
        """Returns the flow's states of states of the pipeline."""
        ...

    def own_state(self, latents: Tensor, sigma: Tensor) -> Tensor:
        """Returns the pipeline's states: the inverse."""
        ...

    def velocity(self, output: Tensor, latents: Tensor, sigma: Tensor) -> Tensor:
        """Returns noise - clean from what the pipeline gives its scheduler, for the flow's latents."""
        ...


@dataclass(frozen=True)
class Rising:
    """Levels that say how much is clean, from 0 to 1, and a network that predicts clean - noise, as Mochi's."""

    num_trailing_steps: int = 0

    def level(self, own: Tensor) -> Tensor:
        return 1 - own

    def own_level(self, sigma: Tensor) -> Tensor:
        return 1 - sigma

    def first(self, noise: Tensor, sigma: Tensor) -> Tensor:
        return noise

    def state(self, own: Tensor, sigma: Tensor) -> Tensor:
        return own

    def own_state(self, latents: Tensor, sigma: Tensor) -> Tensor:
        return latents

    def velocity(self, output: Tensor, latents: Tensor, sigma: Tensor) -> Tensor:
        return -output


@dataclass(frozen=True)
class ExplodingVariance:
    """States y = clean + s noise, with s up to 80, and (y - clean) / s for the scheduler, as Cosmos-Predict2's.

    With sigma = s / (1 + s), y / (1 + s) is a flow's state (Karras et al. 2022, arXiv 2206.00364, for y and s).
    """

    num_trailing_steps: int = 0

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


def scale_of(scheduler: Any) -> Scale | None:
    """Returns the scale of a pipeline with this `FlowMatchEulerDiscreteScheduler`; None: a flow's own."""
    config = scheduler.config
    if config.get("invert_sigmas"):
        return Rising()
    if (config.get("sigma_max") or 1) > 1:
        # with this setting, the pipeline makes its last level the one before: a step of no length
        return ExplodingVariance(int(config.get("final_sigmas_type") == "sigma_min"))
    return None


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))
