"""The memoryless sampler: so much noise that a sample does not depend on its initial latents."""

import math
from dataclasses import dataclass
from typing import Literal

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler
from .base.kernels import bridge, euler_maruyama, flow_sde_diffusion, precise_correlation

NOISE_LEVEL = math.sqrt(2)  # of Flow-GRPO's family: g^2 = 2 sigma / (1 - sigma)


@dataclass(frozen=True)
class Memoryless(StochasticSampler):
    """The SDE with g^2 = 2 sigma / (1 - sigma), under which the sample does not depend on the initial latents.

    Domingo-Enrich et al. 2024, "Adjoint Matching", arXiv 2409.08861, section 4: the noise sigma(t)^2 = 2 eta(t) with
    eta = beta (beta alpha' / alpha - beta'), here alpha = t = 1 - sigma and beta = sigma, so eta = sigma / (1 - sigma).
    Only with it does fine-tuning with a penalty for leaving the reference reach the reference's law tilted by the
    reward. It is Flow-GRPO's schedule at noise level sqrt(2).

    With the kernel `exact` (that of `precise` at sqrt(2), `ddim` at eta 1, and ancestral sampling) a sample no longer
    depends on the initial latents after a first step from sigma 1, whatever the grid.
    """

    kernel: Literal["exact", "euler"] = "exact"  # each step integrated exactly, or Euler-Maruyama as in the paper

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        if self.kernel == "exact":
            return bridge(sigma, sigma_next, precise_correlation(sigma, sigma_next, NOISE_LEVEL))
        return euler_maruyama(sigma, sigma_next, flow_sde_diffusion(sigma, sigma_1, NOISE_LEVEL))
