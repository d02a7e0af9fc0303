"""Coefficients-preserving sampling."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler
from .base.kernels import bridge, cps_correlation


@dataclass(frozen=True)
class CPS(StochasticSampler):
    """The bridge kernel with std = sigma_next * sin(noise_level * pi / 2) (Flow-CPS, arXiv 2509.05952)."""

    noise_level: Annotated[float, Field(gt=0, le=1)] = 0.8  # a step's std is sigma_next * sin(noise_level * pi / 2)

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return bridge(sigma, sigma_next, cps_correlation(self.noise_level))
