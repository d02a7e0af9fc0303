"""The weighted sum of rewards, each normalised in its group, so that none drowns another by its spread."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Scores
from mmrl.core.declarations import MixDeclaration
from mmrl.core.mixes import Plain, counted
from mmrl.core.numerics import group_standardised


@dataclass(frozen=True)
class Gdpo(Plain, Checked):
    """R = sum over k of w_k (r_k - mean of its group) / (std of its group + epsilon).

    Liu et al. 2026, "GDPO: Group reward-Decoupled Normalization Policy Optimization", arXiv 2601.05242, equations 4-6,
    epsilon of NVlabs/GDPO: two samples with different rewards but equal sums get different numbers where the spreads
    of these rewards differ, and a reward of small spread counts by its weight alone. The std divides by n - 1,
    as in the paper's figure 2 and its code, or by n with `is_unbiased: false`. The paper then normalises over the
    batch: `advantage: {name: grpo, std: batch}`; the advantage `gdpo` combines both steps. A reward that is constant in
    a group adds 0 there.
    """

    epsilon: Annotated[float, Field(ge=0)] = 1e-4  # added to the standard deviation
    is_unbiased: bool = True  # the standard deviation divides by n - 1, as in the paper; `false`: by n

    declaration: ClassVar[MixDeclaration] = MixDeclaration(is_relative=True)

    def __call__(self, scores: Scores) -> Tensor:
        """Returns the mixed rewards [B], float32; 0 for invalid samples."""
        values, weights = counted(scores)
        total = torch.zeros(len(values), dtype=torch.float64)
        for reward, weight in zip(values.unbind(1), weights, strict=True):
            total += weight * group_standardised(
                reward, scores.group, scores.valid, unbiased=self.is_unbiased, epsilon=self.epsilon
            )
        return total.float()
