"""Coefficients-preserving sampling."""

from dataclasses import dataclass

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler, check_positive
from .base.kernels import bridge, cps_correlation


@dataclass(frozen=True)
class CPS(StochasticSampler):
    """Bridge with std = sigma_next * sin(noise_level * pi / 2), noise_level in (0, 1] (Flow-CPS, arXiv 2509.05952)."""

    noise_level: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("noise_level", self.noise_level, at_most=1)

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return bridge(sigma, sigma_next, cps_correlation(self.noise_level))
