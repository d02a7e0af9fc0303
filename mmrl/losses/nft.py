"""DiffusionNFT: a contrast of good and bad samples on the forward process, for any sampler and without log-probs.

Maths: docs/maths/denoising-losses.md#diffusionnft
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights
from mmrl.core.declarations import LossDeclaration
from mmrl.core.forward_outputs import Denoising

from .base.denoising import clean_error
from .base.old_decay import OldDecay, OldDenoisingLoss


@dataclass(frozen=True)
class Nft(OldDenoisingLoss):
    """The term advantage_max * (r E(v+) + (1 - r) E(v-)) / beta + reference_weight * mean (v - v_reference)^2.

    Zheng et al. 2025, "DiffusionNFT: Online Diffusion Reinforcement with Forward Process", arXiv 2509.16117, eq. 5 and
    section 4; constants of NVlabs/DiffusionNFT. v+ = beta v + (1 - beta) v_old, v- = (1 + beta) v_old - beta v its
    reflection in the old weights, r = clip(1/2 + A / (2 advantage_max), 0, 1) the quality of the sample, and E the mean
    squared error of the clean latents that a velocity implies. The old weights sample the rollouts; they are an average
    of the trained ones (`decay`). The paper samples noise levels uniformly, its code from the sampler's grid
    (`sigmas: grid`): all but one of 10 steps.

    Raises ValueError for settings out of range.
    """

    draws: Annotated[int, Field(ge=1, le=10_000)] = 9  # noise samples of each sample for each optimizer step
    # Weight of the squared distance of the velocity to the reference's; 0 saves its network call.
    reference_weight: Annotated[float, Field(ge=0)] = 1e-4
    # Length of the contrast between the policy and its old weights: 1 on GenEval and PickScore, 0.1 on OCR.
    beta: Annotated[float, Field(gt=0)] = 1.0
    advantage_max: Annotated[float, Field(gt=0)] = 5.0  # the size of an advantage of a wholly good or bad sample
    is_adaptive: bool = True  # divide each squared error by its own mean absolute error
    decay: OldDecay = field(default_factory=OldDecay)  # how slowly the old weights follow

    @property
    def declaration(self) -> LossDeclaration:
        # the formula contrasts velocities, and corrects by no ratio
        return replace(super().declaration, requires_behaviour=False)

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns E(v+) and E(v-), then the squared distances of the penalties: [B, K] each."""
        trained: Denoising = forward_outputs.trained
        velocity, old = trained.prediction, forward_outputs.old.prediction
        contrasted = (self.beta * velocity + (1 - self.beta) * old, (1 + self.beta) * old - self.beta * velocity)
        errors = [clean_error(trained, each, is_adaptive=self.is_adaptive) for each in contrasted]
        return (*errors, *self.penalties(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        positive, negative, *penalties = measures
        goodness = (0.5 + batch.advantages / (2 * self.advantage_max)).clamp(0, 1)
        terms = self.advantage_max * (goodness * positive + (1 - goodness) * negative) / self.beta
        return self.penalised(terms, penalties, {"positive_error": positive, "negative_error": negative})
