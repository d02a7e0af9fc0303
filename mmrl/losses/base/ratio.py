"""The base of losses on likelihood ratios to the old weights, and means and sums over a path.

Maths: docs/maths/group-relative-losses.md#ratio-and-clip
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.core.contracts import OutputsByWeights
from mmrl.core.data import WeightsName
from mmrl.core.declarations import LossDeclaration
from mmrl.core.numerics import LARGEST_LOG_RATIO

from .log_ratios import LogRatioLoss


@dataclass(frozen=True)
class RatioLoss(LogRatioLoss):
    """A loss on rho = likelihood under the trained weights / under the old ones; a loss adds `terms`."""

    @property
    def declaration(self) -> LossDeclaration:
        return replace(super().declaration, requires_behaviour=True)

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {"old"}

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        return (forward_outputs.trained.log_ratio(forward_outputs.old),)


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Returns exp(log_ratio), bounded: otherwise the backward pass of a clipped decision would be 0 * inf = NaN."""
    return log_ratio.clamp(max=LARGEST_LOG_RATIO).exp()


def path_sum(values: Tensor, weight: Tensor) -> Tensor:
    """Returns the sum of `values` [B, K] over the decisions of each sample, repeated at each decision: [B, K].

    Every decision counts wholly, shared ones too, since the sum is the likelihood of the path. Entries of weight 0 do
    not count.
    """
    kept = torch.where(weight > 0, values, torch.zeros_like(values))
    return kept.sum(1, keepdim=True).expand_as(values)


def path_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Returns the mean of `values` [B, K] over the decisions of each sample, repeated: [B, K]; 0 without decisions."""
    return path_sum(values, weight) / (weight > 0).sum(1, keepdim=True).clamp(min=1)
