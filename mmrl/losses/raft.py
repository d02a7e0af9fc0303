"""RAFT: supervised fine-tuning on the best samples of each group."""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .sft import Sft


@dataclass(frozen=True)
class Raft(Sft):
    """The loss of `sft` on the `top_share` of each group with the highest scores; all others take no part.

    Dong et al. 2023, "RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment", arXiv 2304.06767,
    whose default keeps the best sample of a group. Of equal scores the first counts. With the whole group this is
    `sft`.

    Raises ValueError for settings out of range.
    """

    # Share of a group that is learned from, rounded down; at least one sample.
    top_share: Annotated[float, Field(gt=0, le=1)] = 0.125
    least: float = -math.inf  # the smallest score of a sample that is learned from

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
