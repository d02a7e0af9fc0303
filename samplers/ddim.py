"""DDIM with noise, for flow models."""

from dataclasses import dataclass

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler, check_positive
from .base.kernels import bridge, ddim_correlation


@dataclass(frozen=True)
class DDIM(StochasticSampler):
    """Bridge with 1 - r^2 = eta^2 (1 - R^2), eta in (0, 1] (DDIM, Song et al. 2021, arXiv 2010.02502).

    eta = 1, ancestral sampling, is what DDPO trains (Black et al. 2023, arXiv 2305.13301).
    """

    eta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("eta", self.eta, at_most=1)

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return bridge(sigma, sigma_next, ddim_correlation(sigma, sigma_next, self.eta))
