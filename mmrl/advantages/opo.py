"""Advantages with the baseline of least variance: the mean reward of the group, weighted by the lengths of answers."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_sum

from .grpo import Grpo, Std


@dataclass(frozen=True)
class Opo(Grpo):
    """A_i = R_i - b with b = (sum of l_j R_j) / (sum of l_j) over the group, l_j the number of decisions of sample j.

    Hao et al. 2025, "On-Policy RL with Optimal Reward Baseline", arXiv 2505.23585, section 3.2: the baseline with the
    least variance of the gradient is weighted by the squared length of each sample's gradient, which is assumed to grow
    like the number of the sample's decisions. OPO makes one optimizer step per rollout, and neither divides nor clips.
    A sample without decisions, such as a cut answer that is masked, does not move the baseline. Where no sample of a
    group has decisions, or all have equally many, the baseline is the plain mean (Dr. GRPO). The other settings are
    those of `grpo`.
    """

    # The divisor of the centred reward: the standard deviation of its `group`, of the `batch`, of the batch after
    # centring (`centred_batch`), or `none`.
    std: Std = "none"
    clip: Annotated[float, Field(gt=0)] | None = None  # largest size of an advantage; `null`: any

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(weighs_by_length=True)

    def baseline(self, total: Tensor, counted: Tensor, scores: Scores, paths: Paths | None) -> Tensor:
        """Returns the baselines [B], float64."""
        if paths is None:
            return super().baseline(total, counted, scores, paths)
        length = torch.where(counted, (paths.edge >= 0).sum(1).double(), 0.0)
        weight = torch.where(group_sum(length, scores.group) > 0, length, counted.double())
        sums = group_sum(torch.where(weight > 0, weight * total, 0.0), scores.group)
        # exact for equal rewards: float32 numbers times lengths, added up in float64
        return sums / group_sum(weight, scores.group).clamp(min=1)
