"""Diffusion-KTO: single images that are liked or not, weighed by a human utility.

Maths: docs/maths/preference-losses.md#diffusion-kto
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.data import WeightsName
from mmrl.core.numerics import group_sum

from .base.denoising import DenoisingLoss, noise_error
from .base.settings import check_above, check_one_of

Utility = Literal["kahneman_tversky", "loss_averse", "risk_seeking"]


@dataclass(frozen=True)
class Kto(DenoisingLoss):
    """-weight U(w beta (g - z)), g = l_reference - l, w = 1 for a liked image and -1 for one that is not.

    Li et al. 2024, "Aligning Diffusion Models by Optimizing Human Utility", arXiv 2404.04465, eq. 8; after Ethayarajh
    et al. 2024, "KTO", arXiv 2402.01306. l is the mean squared error of the predicted noise. U is the sigmoid
    (`kahneman_tversky`), its logarithm (`loss_averse`) or -log sigmoid(-x) (`risk_seeking`). The point of reference z
    is the mean of g, at least 0 and without a gradient: theirs over the batch of a step, here over the samples of the
    prompt that is drawn, so that it does not depend on how the work is cut. That takes several samples of a prompt: of
    one alone z is its own gain wherever it has one, so a liked image is never felt to be a gain.

    An image is liked if its score is above `threshold`; without one, if it is better than its group is on average (its
    advantage is above 0; one of 0 takes no part).

    Raises ValueError for settings out of range.
    """

    beta: float = 5000.0
    utility: Utility = "kahneman_tversky"
    threshold: float | None = None
    liked_weight: float = 1.0
    disliked_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta", "liked_weight", "disliked_weight"):
            check_above(name, getattr(self, name))
        check_one_of("utility", self.utility, get_args(Utility))

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
        """[B, K] 1: liked, -1: not, 0: neither."""
        if self.threshold is None:
            return batch.advantages.sign()
        side = torch.where(batch.scores > self.threshold, 1.0, -1.0)
        return side[:, None].expand_as(batch.weight)

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """l of the trained weights and of the reference, and the squared distances of the penalties: [B, K] each."""
        errors = (noise_error(forward_outputs.trained), noise_error(forward_outputs.reference))
        return (*errors, *self.penalties(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        error, compared, *penalties = measures
        gain, side, counts = compared - error, self._side(batch), (batch.weight > 0).to(error.dtype)
        total, number = (group_sum(one.sum(1), batch.group) for one in (gain.detach() * counts, counts))
        point = (total / number.clamp(min=1)).clamp(min=0)[:, None]  # z
        felt = side * self.beta * (gain - point)
        weight = torch.where(side > 0, self.liked_weight, self.disliked_weight)
        metrics = {"matching": error, "gain": gain, "accuracy": (side * gain > 0).to(error.dtype)}
        return self.penalised(-weight * self._felt(felt), penalties, metrics)

    def _felt(self, felt: Tensor) -> Tensor:
        """U(felt)."""
        if self.utility == "kahneman_tversky":
            return felt.sigmoid()
        return logsigmoid(felt) if self.utility == "loss_averse" else -logsigmoid(-felt)
