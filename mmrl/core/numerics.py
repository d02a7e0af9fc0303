"""Pure maths for all parts: masked and grouped statistics, Gaussian densities, KL estimators.

Maths: docs/maths/group-relative-losses.md#what-a-sum-is-divided-by
"""

import math
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum", "rms"]
Normalisation = Literal["decision", "sample", "group", "constant"]
KLEstimator = Literal["k1", "k2", "k3"]

MOST = 10_000  # the largest count that a setting may have, such as steps, turns and noise samples

LARGEST_LOG_RATIO = 20.0  # the largest exponent of e; float32 overflows at 88


def masked_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Returns the weighted mean of `values` over all elements, a scalar; 0 where the weights sum to 0.

    Args:
        values: [...] any shape.
        weight: [...] the same shape, at least 0; entries of weight 0 may hold anything, NaN included.
    """
    kept = torch.where(weight > 0, values * weight, torch.zeros_like(values))
    total = weight.sum()
    return kept.sum() / torch.where(total > 0, total, torch.ones_like(total))


def reduce_elements(values: Tensor, reduction: Reduction) -> Tensor:
    """Reduces the d elements of each row to one number: values [N, ...] -> [N].

    `sum` gives the true density of a latent, `mean` is the unit of the papers' clip ranges, and `rms` is sum / sqrt(d),
    whose spread does not depend on d. The reduction is only a unit: with clip ranges in the same unit, all three train
    the same.
    """
    flat = values.flatten(1)
    total = flat.sum(1)
    if reduction == "sum":
        return total
    return total / (flat.shape[1] if reduction == "mean" else math.sqrt(flat.shape[1]))


def gaussian_log_prob(sample: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Returns the elementwise log-density -(x - mean)^2 / (2 std^2) - log std - log(2 pi) / 2; std > 0."""
    return -(sample - mean).square() / (2 * std.square()) - std.log() - 0.5 * math.log(2 * math.pi)


def gaussian_log_ratio(sample: Tensor, mean: Tensor, old_mean: Tensor, std: Tensor) -> Tensor:
    """Returns the elementwise log N(x; mean, std) - log N(x; old_mean, std), without cancellation.

    (x - old)^2 - (x - mean)^2 = (mean - old)(2x - mean - old): the two large squares are never subtracted.
    """
    return (mean - old_mean) * (2 * sample - mean - old_mean) / (2 * std.square())


def gaussian_kl(mean: Tensor, reference_mean: Tensor, std: Tensor) -> Tensor:
    """Returns the elementwise KL(N(mean, std) || N(reference_mean, std)) = (mean - reference_mean)^2 / (2 std^2)."""
    return (mean - reference_mean).square() / (2 * std.square())


def kl_estimate(log_ratio: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimates KL(p || q) at a sample of p from log_ratio = log p - log q (Schulman 2020, "Approximating KL").

    k1 = log_ratio is unbiased, k2 = log_ratio^2 / 2 has a low variance, k3 = exp(-log_ratio) - 1 + log_ratio is
    unbiased, has a low variance and is at least 0. Below a log_ratio of -LARGEST_LOG_RATIO, where float32 would soon
    overflow, k3 follows the tangent of its exponential: it stays finite, convex and above 0, and its gradient keeps its
    sign.
    """
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    beyond = (-log_ratio - LARGEST_LOG_RATIO).clamp(min=0)
    return torch.expm1((-log_ratio).clamp(max=LARGEST_LOG_RATIO)) + beyond * math.exp(LARGEST_LOG_RATIO) + log_ratio


def group_index(group: Tensor) -> tuple[Tensor, int]:
    """Returns arbitrary group ids [B] renumbered to 0 .. n - 1 [B], in ascending order of the ids; and n."""
    index = group_numbers(group)
    return index, int(index.max()) + 1 if len(index) else 0


def group_numbers(group: Tensor) -> Tensor:
    """Returns arbitrary group ids [B] renumbered to 0 .. n - 1 [B], in ascending order of the ids.

    The host does not wait for a GPU: no size depends on the values.
    """
    ids, order = group.sort(stable=True)
    begins = torch.zeros_like(order)
    begins[1:] = ids[1:] != ids[:-1]
    return torch.empty_like(order).index_copy_(0, order, begins.cumsum(0))


def group_sum(values: Tensor, group: Tensor) -> Tensor:
    """Returns, for each sample, the sum of `values` [B, ...] over all members of its group [B]: [B, ...]."""
    index = group_numbers(group)
    return values.new_zeros(len(group), *values.shape[1:]).index_add(0, index, values)[index]


def group_max(values: Tensor, group: Tensor) -> Tensor:
    """Returns, for each sample, the largest of `values` [B] among all members of its group [B]: [B]."""
    index = group_numbers(group)
    return values.new_zeros(len(group)).scatter_reduce(0, index, values, "amax", include_self=False)[index]


def group_mean(values: Tensor, group: Tensor, valid: Tensor) -> Tensor:
    """Returns, for each sample, the mean over the valid members of its group: [B]; 0 for a group without any.

    Args:
        values: [B]; those of invalid samples may be NaN.
        group: [B] integer ids. valid: [B] bool.
    """
    # float64: the mean of equal float32 values is then exactly that value, and their spread exactly 0
    kept = torch.where(valid, values, torch.zeros_like(values)).double()
    return (group_sum(kept, group) / group_sum(valid.double(), group).clamp(min=1)).to(values.dtype)


def group_log_softmax(values: Tensor, group: Tensor, members: Tensor) -> Tensor:
    """Returns log softmax of `values` [B] over the `members` ([B] bool) of each sample's group; 0 for the others."""
    most = group_max(torch.where(members, values.detach(), -torch.inf), group)
    shifted = torch.where(members, values - most, torch.zeros_like(values))
    total = group_sum(shifted.exp() * members, group)
    return torch.where(members, shifted - total.clamp(min=torch.finfo(values.dtype).tiny).log(), 0.0)


def group_std(values: Tensor, group: Tensor, valid: Tensor, *, unbiased: bool = False) -> Tensor:
    """Returns, for each sample, the standard deviation over the valid members of its group: [B]; 0 for fewer than two.

    `unbiased`: the sum of squares is divided by n - 1, not by n.
    """
    centred = torch.where(valid, values - group_mean(values, group, valid), torch.zeros_like(values))
    count = group_sum(valid.to(values.dtype), group)
    divisor = (count - 1 if unbiased else count).clamp(min=1)
    return (group_sum(centred.square(), group) / divisor).sqrt()


def group_standardised(values: Tensor, group: Tensor, valid: Tensor, *, unbiased: bool, epsilon: float) -> Tensor:
    """Returns (value - mean) / (std + epsilon) within each group: [B]; 0 for invalid samples and in groups of std 0."""
    centred = values - group_mean(values, group, valid)
    spread = group_std(values, group, valid, unbiased=unbiased)
    is_spread = valid & (spread > 0)
    return torch.where(is_spread, centred / torch.where(is_spread, spread + epsilon, 1.0), torch.zeros_like(values))


def group_rank(values: Tensor, group: Tensor, valid: Tensor) -> Tensor:
    """Returns the rank of each sample in its group, [B] int64 from 0: by value, then by place in the batch.

    Invalid samples come last. The arguments are those of `group_mean`.
    """
    index, count = group_index(group)
    order = torch.where(valid, values, torch.inf).argsort(stable=True)
    order = order[(~valid[order]).to(torch.uint8).argsort(stable=True)]
    order = order[index[order].argsort(stable=True)]
    sizes = torch.bincount(index, minlength=count)
    place = torch.empty_like(index)
    place[order] = torch.arange(len(index)) - (sizes.cumsum(0) - sizes)[index[order]]
    return place


def normalised_weights(
    weight: Tensor, group: Tensor, by: Normalisation, constant: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Returns what each term of a loss counts, and what the sum of the terms is divided by.

    The loss is sum(coefficient * term) / denominator, both summed over micro-batches and processes.
    `decision`: every decision counts alike (DAPO's token mean). `sample`: the mean over a sample's decisions, then over
    samples (GRPO). `group`: the mean over a group's decisions, then over groups. `constant`: the sum over a sample's
    decisions divided by a constant, then the mean over samples (Dr. GRPO, arXiv 2503.20783).

    Args:
        weight: [B, K], at least 0; a row of zeros is a sample that takes no part.
        group: [B] integer ids.
        by: what counts alike, as above.
        constant: above 0, for `constant` only.
    Returns:
        The coefficients [B, K] and the denominator, a scalar, 0 where no sample takes part.
    """
    takes_part = (weight.sum(1) > 0).to(weight.dtype)  # [B]
    if by == "decision":
        return weight, weight.sum()
    if by == "constant":
        return weight / constant, takes_part.sum()
    per_sample = weight.sum(1)  # [B]
    if by == "sample":
        return weight / _one_for_zero(per_sample)[:, None], takes_part.sum()
    per_group = group_sum(per_sample, group)
    share = per_sample / _one_for_zero(per_group)  # sums to 1 in a group that takes part
    return weight / _one_for_zero(per_group)[:, None], share.sum()


def _one_for_zero(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, torch.ones_like(values))


def check_count(name: str, value: int, *, least: int = 1, most: int = MOST) -> None:
    """Raises ValueError unless least <= value <= most; the message calls the value `name`."""
    if not least <= value <= most:
        bound = f"at least {least}" if value < least else f"at most {most:,}"
        raise ValueError(f"{name} must be {bound}, got {value}")
