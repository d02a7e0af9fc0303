"""The SDE sampler of DanceGRPO."""

from dataclasses import dataclass

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler, check_positive
from .base.kernels import euler_maruyama


@dataclass(frozen=True)
class DanceSDE(StochasticSampler):
    """Euler-Maruyama with constant g = noise_level (DanceGRPO, Xue et al. 2025, arXiv 2505.07818).

    As in the paper, a group shares its initial noise and 60% of its random steps are trained.
    """

    share_noise: bool = True
    train_fraction: float = 0.6
    noise_level: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("noise_level", self.noise_level)

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return euler_maruyama(sigma, sigma_next, self.noise_level)
