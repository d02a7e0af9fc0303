"""Pairs of samples that are compared draw by draw: differences, and terms of pairs as terms of samples.

Maths: docs/maths/preference-losses.md#diffusion-dpo-and-flow-dpo
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.numerics import group_sum


@dataclass(frozen=True)
class Couples:
    """M pairs of samples, the first of each better than the second."""

    winner: Tensor  # [M] int64: rows of the batch
    loser: Tensor  # [M]

    def difference(self, values: Tensor) -> Tensor:
        """Winner's minus loser's: values [B, K] -> [M, K]."""
        return values[self.winner] - values[self.loser]

    def mean(self, values: Tensor) -> Tensor:
        """The mean of the two: values [B, K] -> [M, K]."""
        return (values[self.winner] + values[self.loser]) / 2

    def weight(self, weight: Tensor) -> Tensor:
        """[M, K] 1 where both take part in an entry, from weight [B, K]."""
        return ((weight[self.winner] > 0) & (weight[self.loser] > 0)).to(weight.dtype)

    def onto_winners(self, values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Means of values [M, K] over the pairs that each sample wins, and how many these are: [B, K] each.

        `weight` [B, K]: pairs count where both samples take part.
        """
        counts = self.weight(weight)
        number = torch.zeros_like(weight).index_add(0, self.winner, counts)
        total = torch.zeros_like(weight).index_add(0, self.winner, values * counts)
        return total / number.clamp(min=1), number

    def onto_groups(self, values: Tensor, weight: Tensor, group: Tensor) -> Tensor:
        """[B, K] means of values [M, K] over all pairs of a sample's group, for metrics; 0 where there are none."""
        mean, number = self.onto_winners(values, weight)
        return group_sum(mean * number, group) / group_sum(number, group).clamp(min=1)
