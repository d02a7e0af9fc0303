"""Several scores of the same samples as one: their mean, reduced by their disagreement."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["discount", "weighted_loss", "lower_bound", "variance", "worst", "disagreement"]


def reduced(values: Tensor, kind: Kind, scale: float, *, top: float = 0.0, own_weight: float = 0.0) -> Tensor:
    """Returns one score of each sample, [B], from n scores of each, [n, B]: the mean m and the population std u.

    discount m e^(-scale u), lower_bound m - scale u, variance m - scale u^2, worst the least, disagreement -u.
    weighted_loss top - (L e^(-scale u) + own_weight u) with the loss L = top - m. Where all n agree the gradient is
    that of the mean.

    Args:
        top: the largest possible score. own_weight: how much u counts as a loss of its own. Both are for weighted_loss.
    """
    if kind == "worst":
        return values.amin(0)
    mean = values.mean(0)
    variance = (values - mean).square().mean(0)
    if kind == "variance":
        return mean - scale * variance
    agrees = variance == 0  # where a square root has no gradient
    spread = torch.where(agrees, 0.0, torch.where(agrees, 1.0, variance).sqrt())
    if kind == "disagreement":
        return -spread
    if kind == "weighted_loss":
        return top - (top - mean) * (-scale * spread).exp() - own_weight * spread
    return mean * (-scale * spread).exp() if kind == "discount" else mean - scale * spread


def reduced_range(
    ranges: Sequence[tuple[float, float]], kind: Kind, scale: float, own_weight: float = 0.0
) -> tuple[float, float]:
    """Returns the ends of `reduced` for scores of these ranges, one for each of the n scores.

    That of `weighted_loss` contains all scores; with an `own_weight` its lower end may not be reached.

    Raises ValueError for `discount` where a score may be below 0: disagreement would then raise it; for `weighted_loss`
    where no score is the largest; and for an `own_weight` with another kind.
    """
    if own_weight > 0 and kind != "weighted_loss":
        raise ValueError(f"own_weight is for kind 'weighted_loss', got {own_weight:g} with {kind!r}")
    low, high = min(one[0] for one in ranges), max(one[1] for one in ranges)
    if kind == "discount" and low < 0:
        raise ValueError(f"kind 'discount' is for rewards of at least 0, got one that goes down to {low:g}")
    if kind == "weighted_loss" and high == math.inf:
        raise ValueError("kind 'weighted_loss' is for rewards with a largest score, got one without")
    if kind == "weighted_loss":  # a std is at most half of what there is between the ends
        return low - own_weight * (high - low) / 2, high
    if kind == "worst":
        return low, min(one[1] for one in ranges)
    if kind == "disagreement":
        return (low - high) / 2, 0.0
    return _lowest(low, high, len(ranges), kind, scale), high


def _lowest(low: float, high: float, count: int, kind: Kind, scale: float) -> float:
    """Returns the lower end for `count` scores from `low` to `high`: all forms are least with each score at an end."""
    if scale == 0:
        return low
    if not math.isfinite(high - low):
        return 0.0 if kind == "discount" else -math.inf
    ends = []
    for number in range(count + 1):
        share = number / count  # of the scores that are at the high end
        mean, spread = low + (high - low) * share, (high - low) * math.sqrt(share * (1 - share))
        if kind == "discount":
            ends.append(mean * math.exp(-scale * spread))
        else:
            ends.append(mean - scale * (spread**2 if kind == "variance" else spread))
    return min(ends)
