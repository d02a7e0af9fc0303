"""The schedule by which old weights follow the trained ones, and the base of denoising losses with old weights.

Maths: docs/maths/denoising-losses.md#one-optimizer-step-and-several
"""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from mmrl.core.checked import Checked
from mmrl.core.data import WeightsName
from mmrl.core.declarations import LossDeclaration

from .denoising import DenoisingLoss


@dataclass(frozen=True)
class OldDecay(Checked):
    """The decay of the old weights after n iterations: 0 before `delay`, then min(start + slope (n - delay), maximum).

    The defaults are type 1 of NVlabs/DiffusionNFT, min(0.001 n, 0.5); its type 2 is delay 75, slope 0.0075, maximum
    0.999. start = maximum makes the decay constant. A decay of 0 makes the old weights a copy of the trained ones.

    Raises ValueError for settings out of range, and for a start above the maximum.
    """

    start: Annotated[float, Field(ge=0, lt=1)] = 0.0  # the decay after `delay` iterations
    slope: Annotated[float, Field(ge=0)] = 0.001  # how much the decay rises in each iteration
    maximum: Annotated[float, Field(ge=0, lt=1)] = 0.5  # the largest decay, at least `start`
    delay: Annotated[int, Field(ge=0)] = 0  # iterations with a decay of 0, before it rises

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start > self.maximum:
            raise ValueError(f"start must be at most maximum = {self.maximum:g}, got {self.start:g}")

    def __call__(self, iterations_done: int) -> float:
        if iterations_done < self.delay:
            return 0.0
        return min(self.start + self.slope * (iterations_done - self.delay), self.maximum)


class OldDenoisingLoss(DenoisingLoss):
    """A loss on the forward process that compares the trained weights with old ones; a loss adds the setting `decay`.

    Without a decay the old weights are the trained weights themselves, which is right for one optimizer step per
    rollout. With a decay the old weights are kept beside the trained ones, sample the rollouts, and follow by the
    decay. Where the exponential of a difference stands for a ratio of likelihoods, the old weights must be those that
    made the samples (`requires_behaviour`).
    """

    decay: OldDecay | None

    @property
    def declaration(self) -> LossDeclaration:
        return replace(super().declaration, requires_behaviour=True)

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {"old"}

    def old_decay(self, iteration: int) -> float | None:
        return None if self.decay is None else self.decay(iteration + 1)
