"""The exactly integrated SDE sampler."""

from dataclasses import dataclass

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler, check_positive
from .base.kernels import bridge, precise_correlation


@dataclass(frozen=True)
class Precise(StochasticSampler):
    """Bridge with r = R^(noise_level^2 / 2), the exact integral of Flow-GRPO's SDE (Precise, arXiv 2605.23522)."""

    noise_level: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("noise_level", self.noise_level)

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return bridge(sigma, sigma_next, precise_correlation(sigma, sigma_next, self.noise_level))
