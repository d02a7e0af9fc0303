"""DiffusionNFT: good and bad samples contrasted on the forward process; any sampler, no log-probs.

Maths: docs/maths/denoising-losses.md#diffusionnft
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights
from mmrl.core.forward_outputs import Denoising

from .base.denoising import clean_error
from .base.old_decay import OldDecay, OldDenoisingLoss
from .base.settings import check_above


@dataclass(frozen=True)
class Nft(OldDenoisingLoss):
    """advantage_max * (r E(v+) + (1 - r) E(v-)) / beta + reference_weight * mean (v - v_reference)^2.

    Zheng et al. 2025, "DiffusionNFT: Online Diffusion Reinforcement with Forward Process", arXiv 2509.16117, eq. 5 and
    section 4; constants of NVlabs/DiffusionNFT. v+ = beta v + (1 - beta) v_old, v- = (1 + beta) v_old - beta v its
    reflection in the old weights, r = clip(1/2 + A / (2 advantage_max), 0, 1) how good the sample is, and E the mean
    squared error of the clean latents that a velocity implies. The old weights draw the rollouts; they are an average
    of the trained ones (`decay`). The paper draws noise levels uniformly, its code from the sampler's grid
    (`sigmas: grid`).

    Raises ValueError for settings out of range.
    """

    draws: int = 9  # (sigma, noise) draws of each sample; the paper's code: all but one of 10 steps, drawn for each
    reference_weight: float = 1e-4
    beta: float = 1.0  # length of the contrast: 1 on GenEval and PickScore, 0.1 on OCR
    advantage_max: float = 5.0  # |A| at which a sample is wholly good or bad
    is_adaptive: bool = True  # divide each squared error by its own mean absolute error
    decay: OldDecay = field(default_factory=OldDecay)

    requires_behaviour: ClassVar[bool] = False  # it contrasts velocities, and corrects by no ratio

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("beta", self.beta)
        check_above("advantage_max", self.advantage_max)

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """E(v+), E(v-), and the squared distances of the penalties: [B, K] each."""
        trained: Denoising = forward_outputs.trained
        velocity, old = trained.prediction, forward_outputs.old.prediction
        contrasted = (self.beta * velocity + (1 - self.beta) * old, (1 + self.beta) * old - self.beta * velocity)
        errors = [clean_error(trained, one, is_adaptive=self.is_adaptive) for one in contrasted]
        return (*errors, *self.penalties(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        positive, negative, *penalties = measures
        goodness = (0.5 + batch.advantages / (2 * self.advantage_max)).clamp(0, 1)
        terms = self.advantage_max * (goodness * positive + (1 - goodness) * negative) / self.beta
        return self.penalised(terms, penalties, {"positive_error": positive, "negative_error": negative})
