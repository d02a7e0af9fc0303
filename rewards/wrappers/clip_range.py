"""Any reward, clipped at both ends."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch

from ..base.wrapper import RewardWrapper, only_numbers


@dataclass(frozen=True)
class ClipRange(RewardWrapper):
    """A clipped reward: min(max(r, low), high), so that an outlier cannot decide a group or drown the others of a mix.

    Scores beyond the ends have no gradient. Of a dense reward each number is clipped. Raises ValueError where low is
    not below high, or where the inner reward cannot reach between them.
    """

    reward: Reward  # the reward that is clipped
    low: float = 0.0  # what lower scores become
    high: float = 1.0  # what higher scores become

    source: ClassVar[str] = "Mnih et al. 2015, doi 10.1038/nature14236 (clipped rewards)"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.reward.range
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"low must be below high, both finite, got {self.low} and {self.high}")
        if not max(self.low, low) < min(self.high, high):
            raise ValueError(
                f"the inner reward runs from {low:g} to {high:g}: cut to {self.low:g} to {self.high:g} it is constant"
            )
        self.inherit(self.reward, range=(max(self.low, low), min(self.high, high)))

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32; raises what the inner reward raises."""
        return only_numbers(self.reward, batch, self.reward.score(batch).clamp(self.low, self.high))
