"""Any reward as a yes or no: 1 where it reaches a threshold."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch

from ..base.wrapper import RewardWrapper, only_numbers


@dataclass(frozen=True)
class Threshold(RewardWrapper):
    """A binary reward: 1 where the inner reward is at least `threshold`, else 0.

    One of the five rewards that DanceGRPO (Xue et al. 2025, arXiv 2505.07818) trains on: scores above a fixed number
    count 1, others 0. A step has no gradient. NaN stays NaN: a sample that could not be judged is neither good nor bad.
    Of a dense reward each number is compared.

    Raises ValueError for a threshold that every score of the inner reward reaches or misses.
    """

    reward: Reward  # the reward that is compared
    threshold: float  # the least score of a good sample, in units of the inner reward

    source: ClassVar[str] = "Xue et al. 2025 (DanceGRPO), arXiv 2505.07818"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.reward.range
        if not low < self.threshold <= high:
            always = 1 if self.threshold <= low else 0
            raise ValueError(
                f"the inner reward runs from {low:g} to {high:g}: with threshold {self.threshold:g} every sample"
                f" scores {always}"
            )
        self.inherit(self.reward, range=(0.0, 1.0), differentiable=False)

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32; raises what the inner reward raises."""
        scores = self.reward.score(batch)
        return only_numbers(
            self.reward, batch, (scores >= self.threshold).float().masked_fill(scores.isnan(), math.nan)
        )
