"""Each reward normalised in its own group, then summed: no reward is drowned by the spread of another."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.mixes import Plain, counted
from mmrl.core.numerics import group_standardised


@dataclass(frozen=True)
class Gdpo(Plain):
    """R = sum over k of w_k (r_k - mean of its group) / (std of its group + epsilon).

    Liu et al. 2026, "GDPO: Group reward-Decoupled Normalization Policy Optimization", arXiv 2601.05242, equations 4-6,
    epsilon of NVlabs/GDPO: two samples with different rewards but equal sums are told apart where the spreads of these
    differ, and a reward of small spread counts as much as its weight says. The std divides by n - 1, as in the paper's
    figure 2 and its code, or by n with `is_unbiased: false`. The paper then normalises over the batch:
    `advantage: {name: grpo, std: batch}`; the advantage `gdpo` is both in one. A reward that is constant in a group
    adds 0 there.
    """

    epsilon: float = 1e-4
    is_unbiased: bool = True

    is_relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.epsilon < 0:
            raise ValueError(f"epsilon must be at least 0, got {self.epsilon}")

    def __call__(self, scores: Scores) -> Tensor:
        """[B] float32; 0 for invalid samples."""
        values, weights = counted(scores)
        total = torch.zeros(len(values), dtype=torch.float64)
        for reward, weight in zip(values.unbind(1), weights, strict=True):
            total += weight * group_standardised(
                reward, scores.group, scores.valid, unbiased=self.is_unbiased, epsilon=self.epsilon
            )
        return total.float()
