"""Pairs of samples compared at each noise sample: differences, and terms of pairs as terms of samples.

Maths: docs/maths/preference-losses.md#diffusion-dpo-and-flow-dpo
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.numerics import group_sum


@dataclass(frozen=True)
class Couples:
    """M pairs of samples, each with a winner and a loser."""

    winner: Tensor  # [M] int64: rows of the batch
    loser: Tensor  # [M]

    def difference(self, values: Tensor) -> Tensor:
        """Returns the winner's values minus the loser's [M, K], of values [B, K]."""
        return values[self.winner] - values[self.loser]

    def mean(self, values: Tensor) -> Tensor:
        """Returns the mean [M, K] over the two samples of each pair, of values [B, K]."""
        return (values[self.winner] + values[self.loser]) / 2

    def weight(self, weight: Tensor) -> Tensor:
        """Returns 1 [M, K] where both samples take part in an entry, else 0, of weight [B, K]."""
        return ((weight[self.winner] > 0) & (weight[self.loser] > 0)).to(weight.dtype)

    def onto_winners(self, values: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the means of values [M, K] over the pairs that each sample wins, and their number: [B, K] each.

        A pair counts where both samples have a weight [B, K] above 0.
        """
        counts = self.weight(weight)
        number = torch.zeros_like(weight).index_add(0, self.winner, counts)
        total = torch.zeros_like(weight).index_add(0, self.winner, values * counts)
        return total / number.clamp(min=1), number

    def onto_groups(self, values: Tensor, weight: Tensor, group: Tensor) -> Tensor:
        """Returns the means [B, K] of values [M, K] over all pairs of each sample's group, for metrics; 0 for none."""
        mean, number = self.onto_winners(values, weight)
        return group_sum(mean * number, group) / group_sum(number, group).clamp(min=1)
