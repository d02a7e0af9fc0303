"""One step of a flow sampler, as numbers."""

from dataclasses import dataclass

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
