"""Several scores of the same samples as one: their mean, reduced by their disagreement."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["discount", "lower_bound", "variance", "worst", "disagreement"]


def reduced(values: Tensor, kind: Kind, scale: float) -> Tensor:
    """Returns one score of each sample, [B], from n scores of each, [n, B]: the mean m and the population std u.

    discount m e^(-scale u), lower_bound m - scale u, variance m - scale u^2, worst the least, disagreement -u. Where
    all n agree the gradient is that of the mean.
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
    return mean * (-scale * spread).exp() if kind == "discount" else mean - scale * spread


def reduced_range(ranges: Sequence[tuple[float, float]], kind: Kind, scale: float) -> tuple[float, float]:
    """Returns the ends of `reduced` for scores of these ranges, one for each of the n scores.

    Raises ValueError for `discount` where a score may be below 0: disagreement would then raise it.
    """
    low, high = min(one[0] for one in ranges), max(one[1] for one in ranges)
    if kind == "discount" and low < 0:
        raise ValueError(f"kind 'discount' is for rewards of at least 0, got one that goes down to {low:g}")
    if kind == "worst":
        return low, min(one[1] for one in ranges)
    if kind == "disagreement":  # a std is at most half of what there is between the ends
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
