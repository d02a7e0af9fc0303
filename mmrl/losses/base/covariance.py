"""What losses on covariances share: the covariance of log-prob and advantage, and the number of decisions to select.

Maths: docs/maths/group-relative-losses.md#covariance-of-log-prob-and-advantage
"""

from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import masked_mean


def covariance(log_prob: Tensor, advantages: Tensor, weight: Tensor) -> Tensor:
    """Returns the part of each decision in the covariance, (log_prob - mean)(A - mean): [N] of values [N]."""
    return (log_prob - masked_mean(log_prob, weight)) * (advantages - masked_mean(advantages, weight))


def share_of(count: int, share: float) -> int:
    """Returns the whole number of decisions in a share of `count`, at least one."""
    return max(1, int(share * count))


def selected(batch: LossBatch) -> Tensor:
    """Returns the decisions [B, K] (bool) that were selected. Raises ValueError where the batch does not hold them."""
    if batch.selected is None:
        raise ValueError("the loss needs the selected decisions of the step, which the batch does not hold")
    return batch.selected
