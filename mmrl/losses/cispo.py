"""CISPO: REINFORCE with the importance ratio as a bounded weight; no decision loses its gradient."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import Normalisation

from .base.ratio import RatioLoss, ratio_of


@dataclass(frozen=True)
class Cispo(RatioLoss):
    """The term -stop_gradient(w) A log(new / old) of each decision, w its ratio kept within [floor, cap].

    MiniMax 2025, "MiniMax-M1", arXiv 2506.13585, eq. 4 and 5. Old log-probs are constants, so the gradient is that of
    -w A log_prob. The paper tunes only the upper end and does not print it; 5 is the advice of Khatri et al. 2025,
    "ScaleRL", arXiv 2510.13786, and by TRL's documentation. `cap` is the ratio itself, as TRL's `epsilon_high` is for
    this loss (whose default then caps at 0.2); verl and EasyR1 keep ratios within [1 - clip_low, 1 + clip_high].

    Ratios outside of the range are `truncated` to the nearer end (truncated importance sampling, Espeholt et al. 2018,
    arXiv 1802.01561) or `masked`, weight 0 (IcePop, arXiv 2510.18855). For answers that an inference engine samples
    there is the section `correction`, which corrects advantages whatever the loss.

    Raises ValueError for settings out of range.
    """

    cap: Annotated[float, Field(ge=1)] = 5.0  # the largest ratio, not the distance from 1
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0  # the smallest ratio
    # Ratios outside of the range become the nearer end (`truncated`, TIS) or weigh nothing (`masked`, IcePop).
    outside: Literal["truncated", "masked"] = "truncated"
    # What counts alike: each decision, sample or group; `constant` divides each sample's sum by a number.
    normalise: Normalisation = "decision"

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = compared[0]
        ratio = ratio_of(log_ratio.detach())
        weight = ratio.clamp(self.floor, self.cap)
        if self.outside == "masked":
            weight = torch.where(weight == ratio, ratio, torch.zeros_like(ratio))
        metrics = {"ratio": ratio, "clip_fraction": (weight != ratio).to(ratio.dtype)}
        return -weight * batch.advantages * log_ratio, metrics
