"""Advantages of each reward alone, summed with the weights."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.mixes import Plain


@dataclass(frozen=True)
class AdvantageWeighted(Plain):
    """A = sum over k of w_k A(r_k), with the run's own advantage A asked once for each reward that counts.

    As the multi-reward trainers of DanceGRPO (Xue et al. 2025, arXiv 2505.07818) and Flow-GRPO's forks do: whatever A
    normalises by, it does so for each reward alone. The number of a sample, for metrics and the best checkpoint, is
    the weighted sum.
    """

    is_of_advantages: ClassVar[bool] = True

    def __call__(self, scores: Scores) -> Tensor:
        """[B] float32: the weighted sum."""
        return scores.weighted_sum
