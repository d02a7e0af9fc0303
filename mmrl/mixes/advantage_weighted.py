"""The weighted sum of the advantages of each reward alone."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.declarations import MixDeclaration
from mmrl.core.mixes import Plain


@dataclass(frozen=True)
class AdvantageWeighted(Plain):
    """A = sum over k of w_k A(r_k), with the run's own advantage A computed once for each reward that counts.

    As in the multi-reward trainers of DanceGRPO (Xue et al. 2025, arXiv 2505.07818) and Flow-GRPO's forks, A normalises
    each reward alone. The number of a sample, for metrics and the best checkpoint, is the weighted sum of its rewards.
    """

    declaration: ClassVar[MixDeclaration] = MixDeclaration(is_of_advantages=True)

    def __call__(self, scores: Scores) -> Tensor:
        """Returns the weighted sums [B] of the rewards, float32."""
        return scores.weighted_sum
