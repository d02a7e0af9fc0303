"""RAFT: supervised fine-tuning on the best of what the policy drew."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .sft import Sft


@dataclass(frozen=True)
class Raft(Sft):
    """The loss of `sft` on the `top_share` of each group that scores highest; all others take no part.

    Dong et al. 2023, "RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment", arXiv 2304.06767,
    whose default keeps the best one of a group; rounded down, at least one sample. Of equal scores the first counts.
    `least`: a sample also has to score at least this. With the whole group it is `sft`.

    Raises ValueError for settings out of range.
    """

    top_share: float = 0.125
    least: float = -math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.top_share <= 1:
            raise ValueError(f"top_share must be above 0 and at most 1, got {self.top_share}")

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        kept = torch.zeros_like(batch.scores)
        takes_part = (batch.weight > 0).any(1)
        for group in batch.group[takes_part].unique():
            rows = ((batch.group == group) & takes_part).nonzero().squeeze(1)
            # 0.29 * 100 is 28.999...: rounding down must not lose a sample to the last bit
            count = max(1, math.floor(self.top_share * len(rows) + 1e-9))
            kept[rows[batch.scores[rows].argsort(descending=True, stable=True)[:count]]] = 1.0
        kept = kept * (batch.scores >= self.least)
        return super().coefficients(replace(batch, weight=batch.weight * kept[:, None]))
