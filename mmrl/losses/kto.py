"""Diffusion-KTO: single liked and disliked images, weighed by a model of human utility.

Maths: docs/maths/preference-losses.md#diffusion-kto
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.data import WeightsName
from mmrl.core.numerics import group_sum

from .base.denoising import DenoisingLoss, noise_error

Utility = Literal["kahneman_tversky", "loss_averse", "risk_seeking"]


@dataclass(frozen=True)
class Kto(DenoisingLoss):
    """The term -weight U(w beta (g - z)), g = l_reference - l, w = 1 for a liked image and -1 for a disliked one.

    Li et al. 2024, "Aligning Diffusion Models by Optimizing Human Utility", arXiv 2404.04465, eq. 8; after Ethayarajh
    et al. 2024, "KTO", arXiv 2402.01306. l is the mean squared error of the predicted noise. U is the sigmoid
    (`kahneman_tversky`), its logarithm (`loss_averse`) or -log sigmoid(-x) (`risk_seeking`). The point of reference z
    is the mean of g, at least 0 and without a gradient: in the paper over the batch of a step, here over the samples of
    a group, so that z does not depend on how the work is cut. So take several samples of each prompt: in a group of one
    z is the sample's own gain wherever that is above 0, and a liked image never counts as a gain.

    An image is liked if its score is above `threshold`. Without a threshold it is liked if its advantage is above 0,
    that is, if it is better than its group on average; an image with advantage 0 takes no part.

    Raises ValueError for settings out of range.
    """

    beta: Annotated[float, Field(gt=0)] = 5000.0  # times the gain over the reference
    # U: a sigmoid (`kahneman_tversky`), its logarithm (`loss_averse`), or -log sigmoid(-x) (`risk_seeking`).
    utility: Utility = "kahneman_tversky"
    threshold: float | None = None  # images with a score above this are liked; `null`: those with an advantage above 0
    liked_weight: Annotated[float, Field(gt=0)] = 1.0  # weight of a liked image
    disliked_weight: Annotated[float, Field(gt=0)] = 1.0  # weight of a disliked image

    @property
    def scope(self) -> Scope:
        return "group"

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {"reference"}

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        weight = batch.weight * (self._side(batch) != 0)
        return weight, weight.sum()

    def _side(self, batch: LossBatch) -> Tensor:
        """Returns 1 for liked, -1 for disliked images, 0 for neither: [B, K]."""
        if self.threshold is None:
            return batch.advantages.sign()
        side = torch.where(batch.scores > self.threshold, 1.0, -1.0)
        return side[:, None].expand_as(batch.weight)

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns l of the trained weights and of the reference, then the penalties' distances: [B, K] each."""
        errors = (noise_error(forward_outputs.trained), noise_error(forward_outputs.reference))
        return (*errors, *self.penalties(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        error, compared, *penalties = measures
        gain, side, counts = compared - error, self._side(batch), (batch.weight > 0).to(error.dtype)
        total, number = (group_sum(one.sum(1), batch.group) for one in (gain.detach() * counts, counts))
        point = (total / number.clamp(min=1)).clamp(min=0)[:, None]  # z
        argument = side * self.beta * (gain - point)
        weight = torch.where(side > 0, self.liked_weight, self.disliked_weight)
        metrics = {"matching": error, "gain": gain, "accuracy": (side * gain > 0).to(error.dtype)}
        return self.penalised(-weight * self._utility(argument), penalties, metrics)

    def _utility(self, argument: Tensor) -> Tensor:
        """Returns U(argument)."""
        if self.utility == "kahneman_tversky":
            return argument.sigmoid()
        return logsigmoid(argument) if self.utility == "loss_averse" else -logsigmoid(-argument)
