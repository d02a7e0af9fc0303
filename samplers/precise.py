"""The exactly integrated SDE sampler."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler
from .base.kernels import bridge, precise_correlation


@dataclass(frozen=True)
class Precise(StochasticSampler):
    """The bridge with r = R^(noise_level^2 / 2), the exact integral of Flow-GRPO's SDE (Precise, arXiv 2605.23522)."""

    noise_level: Annotated[float, Field(gt=0)] = 1.5  # as in `flow_sde`, whose SDE the kernel integrates exactly

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return bridge(sigma, sigma_next, precise_correlation(sigma, sigma_next, self.noise_level))
