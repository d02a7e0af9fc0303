"""CISPO: REINFORCE with the importance ratio as a bounded weight; no decision loses its gradient."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import Normalisation

from .base.ratio import RatioLoss, ratio_of
from .base.settings import check_one_of


@dataclass(frozen=True)
class Cispo(RatioLoss):
    """-stop_gradient(w) A log(new / old) of each decision, w its ratio kept within [floor, cap].

    MiniMax 2025, "MiniMax-M1", arXiv 2506.13585, eq. 4 and 5. Old log-probs are constants, so the gradient is that of
    -w A log_prob. The paper tunes the upper end only and does not print it; 5 is advised by Khatri et al. 2025,
    "ScaleRL", arXiv 2510.13786, and by TRL's documentation. `cap` is the ratio itself, as TRL's `epsilon_high` is for
    this loss (whose default then caps at 0.2); verl and EasyR1 keep ratios within [1 - clip_low, 1 + clip_high].

    `outside` says what becomes of ratios outside: `truncated` to the nearer end (truncated importance sampling,
    Espeholt et al. 2018, arXiv 1802.01561), or `masked`, weight 0 (IcePop, arXiv 2510.18855). For answers drawn by
    another engine there is `correction` beside it, which corrects advantages whatever the loss.

    Raises ValueError unless 0 <= floor <= 1 <= cap.
    """

    cap: float = 5.0
    floor: float = 0.0
    outside: Literal["truncated", "masked"] = "truncated"
    normalise: Normalisation = "decision"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.floor <= 1 <= self.cap:
            raise ValueError(f"needs 0 <= floor <= 1 <= cap, got floor {self.floor} and cap {self.cap}")
        check_one_of("outside", self.outside, ("truncated", "masked"))

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = compared[0]
        ratio = ratio_of(log_ratio.detach())
        weight = ratio.clamp(self.floor, self.cap)
        if self.outside == "masked":
            weight = torch.where(weight == ratio, ratio, torch.zeros_like(ratio))
        metrics = {"ratio": ratio, "clip_fraction": (weight != ratio).to(ratio.dtype)}
        return -weight * batch.advantages * log_ratio, metrics
