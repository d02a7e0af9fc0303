"""How slowly the old weights follow the trained ones, and losses on the forward process that compare with them.

Maths: docs/maths/denoising-losses.md#one-optimizer-step-and-several
"""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.core.data import WeightsName

from .denoising import DenoisingLoss


@dataclass(frozen=True)
class OldDecay:
    """After n iterations: 0 before `delay`, then min(start + slope (n - delay), maximum).

    The defaults are type 1 of NVlabs/DiffusionNFT, min(0.001 n, 0.5); its type 2 is delay 75, slope 0.0075, maximum
    0.999. A constant is start = maximum. 0 makes old a copy of the trained weights.

    Raises ValueError unless 0 <= start <= maximum < 1, slope >= 0 and delay >= 0.
    """

    start: float = 0.0
    slope: float = 0.001  # per iteration
    maximum: float = 0.5
    delay: int = 0  # iterations

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.maximum < 1:
            raise ValueError(f"needs 0 <= start <= maximum < 1, got start {self.start} and maximum {self.maximum}")
        if self.slope < 0 or self.delay < 0:
            raise ValueError(f"slope and delay must be at least 0, got slope {self.slope} and delay {self.delay}")

    def __call__(self, iterations_done: int) -> float:
        if iterations_done < self.delay:
            return 0.0
        return min(self.start + self.slope * (iterations_done - self.delay), self.maximum)


class OldDenoisingLoss(DenoisingLoss):
    """A loss on the forward process that compares the trained weights with old ones; a loss adds the setting `decay`.

    Without one old are the weights themselves, which is right for one optimizer step per rollout; with one they are
    kept beside the trained ones, draw the rollouts and follow as it says. Where the exponential of a difference stands
    for a ratio of likelihoods, old are those of whoever made the samples (`requires_behaviour`).
    """

    requires_behaviour: ClassVar[bool] = True

    decay: OldDecay | None

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {"old"}

    def old_decay(self, iteration: int) -> float | None:
        return None if self.decay is None else self.decay(iteration + 1)
