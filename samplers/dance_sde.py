"""The SDE sampler of DanceGRPO."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mmrl.plans.flow import Transition

from .base.flow import StochasticSampler
from .base.kernels import euler_maruyama


@dataclass(frozen=True)
class DanceSDE(StochasticSampler):
    """The Euler-Maruyama kernel with constant g = noise_level (DanceGRPO, Xue et al. 2025, arXiv 2505.07818).

    As in the paper, a group shares its initial noise and 60% of its random steps are trained.
    """

    share_noise: bool = True  # the group starts from one latent; the paper's value
    # Share of the random steps that are decisions, chosen anew for each group; the paper's value.
    train_fraction: Annotated[float, Field(gt=0, le=1)] = 0.6
    noise_level: Annotated[float, Field(gt=0)] = 0.3  # g, the same at every step

    def transition(self, sigma: float, sigma_next: float, sigma_1: float) -> Transition:
        return euler_maruyama(sigma, sigma_next, self.noise_level)
