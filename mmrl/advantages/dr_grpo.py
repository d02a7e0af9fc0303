"""Group-relative advantages without a division: rewards minus the mean of their group."""

from dataclasses import dataclass

from torch import Tensor

from mmrl.core.data import Paths, Scores

from .grpo import Grpo


@dataclass(frozen=True)
class DrGrpo:
    """A = R - mean of the group: GRPO's advantage with std `none` and no clip.

    Liu et al. 2025, "Understanding R1-Zero-Like Training", arXiv 2503.20783, section 3.2: a division by the std of the
    group favours prompts that are very hard or very easy. The other half of Dr. GRPO, a constant in place of an
    answer's length, is the loss's `normalise: constant`. Invalid samples enter no mean and get 0.
    """

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        return Grpo(std="none", clip=None)(scores, paths)
