"""DDIM with noise for flow models."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler
from .base.kernels import bridge, ddim_correlation


@dataclass(frozen=True)
class DDIM(StochasticSampler):
    """The bridge kernel with 1 - r^2 = eta^2 (1 - R^2), eta in (0, 1] (DDIM, Song et al. 2021, arXiv 2010.02502).

    eta = 1, ancestral sampling, is what DDPO trains (Black et al. 2023, arXiv 2305.13301).
    """

    eta: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of the noise; 1 is ancestral sampling

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return bridge(sigma, sigma_next, ddim_correlation(sigma, sigma_next, self.eta))
