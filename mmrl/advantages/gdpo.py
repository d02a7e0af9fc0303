"""Decoupled advantages: each reward normalised in its group, then their sum normalised over the batch."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_standardised

from .grpo import Grpo


@dataclass(frozen=True)
class Gdpo(Checked):
    """A = S / (std of S over the batch + epsilon), S = sum over k of w_k (r_k - mean) / (std + epsilon) in its group.

    Liu et al. 2026, "GDPO: Group reward-Decoupled Normalization Policy Optimization", arXiv 2601.05242, equations 4-7,
    epsilon and unbiased std of a group of NVlabs/GDPO. For the std of the batch, NVlabs/GDPO divides by N - 1, and this
    advantage by N; the mean of S is 0 in every group. It is the mix `gdpo` with
    `advantage: {name: grpo, std: batch, clip: null}`; the mix goes with any other advantage, too. With one reward and
    groups of equal size it is `grpo` but for the scale of all advantages. Invalid samples enter no statistic and get 0.

    Raises ValueError for an epsilon below 0.
    """

    epsilon: Annotated[float, Field(ge=0)] = 1e-4  # added to the standard deviations
    is_unbiased: bool = True  # the standard deviation of a group divides by n - 1; `false`: by n

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(sums_rewards=True)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        total = torch.zeros(len(scores.group), dtype=torch.float64)
        for values, weight in zip(scores.values.double().unbind(1), scores.weights, strict=True):
            if weight != 0:
                total += weight * group_standardised(
                    values, scores.group, scores.valid, unbiased=self.is_unbiased, epsilon=self.epsilon
                )
        summed = replace(scores, values=total.float()[:, None], names=("gdpo",), weights=(1.0,), mix=None)
        return Grpo(std="batch", clip=None, epsilon=self.epsilon)(summed, paths)
