"""The SDE sampler of Flow-GRPO."""

from dataclasses import dataclass

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler, check_positive
from .base.kernels import euler_maruyama, flow_sde_diffusion


@dataclass(frozen=True)
class FlowSDE(StochasticSampler):
    """Euler-Maruyama with g = noise_level * sqrt(sigma / (1 - sigma)) (Flow-GRPO, Liu et al. 2025, arXiv 2505.05470).

    `noise_level` is also the std of the first step. Published: 0.7 (SD3.5), 0.9 (FLUX), 1.2 (Qwen-Image); at most 2,
    beyond which the first step enlarges the latents.
    """

    noise_level: float = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("noise_level", self.noise_level, at_most=2)

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return euler_maruyama(sigma, sigma_next, flow_sde_diffusion(sigma, sigma_1, self.noise_level))
