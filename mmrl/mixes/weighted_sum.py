"""The weighted sum of the rewards, the default mix."""

from dataclasses import dataclass

from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.mixes import Plain


@dataclass(frozen=True)
class WeightedSum(Plain):
    """R = sum over k of w_k r_k. A reward with a large spread within its groups counts for more than its weight."""

    def __call__(self, scores: Scores) -> Tensor:
        """Returns the mixed rewards [B], float32."""
        return scores.weighted_sum
