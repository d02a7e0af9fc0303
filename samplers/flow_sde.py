"""The SDE sampler of Flow-GRPO."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler
from .base.kernels import euler_maruyama, flow_sde_diffusion


@dataclass(frozen=True)
class FlowSDE(StochasticSampler):
    """Euler-Maruyama with g = noise_level * sqrt(sigma / (1 - sigma)) (Flow-GRPO, Liu et al. 2025, arXiv 2505.05470).

    `noise_level` is also the std of the first step. Published: 0.7 (SD3.5), 0.9 (FLUX), 1.2 (Qwen-Image); at most 2,
    beyond which the first step enlarges the latents.
    """

    noise_level: Annotated[float, Field(gt=0, le=2)] = 0.7  # g = noise_level * sqrt(sigma / (1 - sigma))

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return euler_maruyama(sigma, sigma_next, flow_sde_diffusion(sigma, sigma_1, self.noise_level))
