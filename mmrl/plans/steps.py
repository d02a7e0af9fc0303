"""One step of a flow sampler, as numbers."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from torch import Tensor

SMALLEST_STD = 1e-15  # its square, which log-probs divide by, is still one of float32


@dataclass(frozen=True)
class Transition:
    """One step of a sampler, x' = state * x + velocity * v(x) + std * z with z ~ N(0, I).

    Every published kernel is linear in the latent x and the predicted velocity v, so three numbers say all of it.
    `std` is 0 for a deterministic step, which has no log-probability.
    """

    state: float
    velocity: float
    std: float

    def __post_init__(self) -> None:
        if not self.std >= 0:
            raise ValueError(f"the standard deviation of a step must be at least 0, got {self.std}")
        if 0 < self.std < SMALLEST_STD:
            raise ValueError(f"the noise of a step, of standard deviation {self.std:g}, is too small for float32")

    def mean(self, latents: Tensor, velocity: Tensor) -> Tensor:
        """Mean of the next latents, the shape of `latents`."""
        return self.state * latents + self.velocity * velocity


@dataclass(frozen=True)
class Step:
    """A step from noise level `sigma` to `sigma_next` < sigma, both in [0, 1]; each node splits into `branch` children.

    A random step that is not trained explores without being a decision (DanceGRPO trains a share of its steps).
    """

    sigma: float
    sigma_next: float
    transition: Transition
    branch: int = 1
    is_trained: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.sigma_next < self.sigma <= 1:
            raise ValueError(f"a step must fall within [0, 1], got sigma {self.sigma} -> {self.sigma_next}")
        if self.branch < 1:
            raise ValueError(f"a step must have at least one child, got branch {self.branch}")
        if self.branch > 1 and self.transition.std == 0:
            raise ValueError(f"a step without noise cannot branch: all {self.branch} children would be the same")

    @property
    def is_random(self) -> bool:
        return self.transition.std > 0

    @property
    def is_decision(self) -> bool:
        return self.is_random and self.is_trained


SolverName = Literal["dpmpp_2m", "unipc", "heun"]


@dataclass(frozen=True)
class Tail:
    """Deterministic steps from noise level to noise level by a solver, nothing of which is a decision.

    `dpmpp_2m`: DPM-Solver++(2M) (Lu et al. 2022, arXiv 2211.01095, algorithm 2); `unipc`: UniPC of order 2 with its
    corrector (Zhao et al. 2023, arXiv 2302.04867); `heun`: Heun's method (Karras et al. 2022, arXiv 2206.00364,
    algorithm 1), which calls the network twice for each step but the last.
    """

    solver: SolverName
    sigmas: tuple[float, ...]  # n + 1 levels of n steps, falling within [0, 1]

    def __post_init__(self) -> None:
        falls = all(sigma > sigma_next for sigma, sigma_next in pairwise(self.sigmas))
        if len(self.sigmas) < 2 or not (falls and self.sigmas[0] <= 1 and self.sigmas[-1] >= 0):
            raise ValueError(f"a solver needs at least two levels that fall within [0, 1], got {list(self.sigmas)}")

    @property
    def calls(self) -> tuple[float, ...]:
        """The noise level of each network call."""
        if self.solver != "heun":
            return self.sigmas[:-1]
        return (self.sigmas[0], *(sigma for sigma in self.sigmas[1:-1] for _ in range(2)))
