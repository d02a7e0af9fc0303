"""Leave-one-out advantages: the difference of a reward from the mean of the others of its group."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.data import Paths, Scores
from mmrl.core.numerics import group_sum


@dataclass(frozen=True)
class Rloo:
    """A_i = R_i - mean of the other rewards of its group, without a division by a std.

    Ahmadian et al. 2024, "Back to Basics", arXiv 2402.14740, section 2.3.1; for diffusion, Gupta et al. 2025, "LOOP",
    arXiv 2503.00897. The baseline does not depend on the sample's own reward, so the gradient is unbiased; A is
    GRPO's undivided advantage times n / (n - 1). For episodes the others are the turns of other episodes. Invalid
    samples do not count among the others and get 0, and so does a sample that is alone.
    """

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        # float64: sums of equal float32 rewards are then exact, and the advantage exactly 0
        kept = torch.where(scores.valid, scores.total.double(), 0.0)
        own, turns = (group_sum(each, scores.episode) for each in (kept, scores.valid.double()))
        others = group_sum(scores.valid.double(), scores.group) - turns  # [B]
        advantage = kept - (group_sum(kept, scores.group) - own) / others.clamp(min=1)
        return torch.where(scores.valid & (others > 0), advantage, 0.0).float()
