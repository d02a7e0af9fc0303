"""Shared parts of advantages of episodes: rewards and returns of turns, and their normalisation within a group.

Maths: docs/maths/agents.md#returns
"""

from itertools import pairwise

import torch
from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.numerics import group_mean, group_std, group_sum


def whole_episodes(scores: Scores) -> Tensor:
    """Returns the samples [B] (bool) of episodes whose turns are all valid; other returns are not known."""
    return group_sum((~scores.valid).double(), scores.episode) == 0


def turn_rewards(scores: Scores) -> Tensor:
    """Returns the weighted reward of each turn [B], float64.

    Rewards of whole episodes, and rewards that compare a group, count once, at the episode's last turn.
    """
    place = torch.unique(scores.episode, return_inverse=True)[1]
    last = torch.zeros_like(place).scatter_reduce(0, place, scores.turn, "amax", include_self=False)[place]
    total = torch.zeros(len(place), dtype=torch.float64)
    granularities = scores.granularities or ("sample",) * len(scores.names)
    for values, weight, granularity in zip(scores.values.unbind(1), scores.weights, granularities, strict=True):
        if weight != 0:
            counts = scores.turn == last if granularity in ("episode", "group") else torch.ones_like(scores.valid)
            total += torch.where(counts, weight * values.double(), 0.0)
    return total


def returns(rewards: Tensor, scores: Scores, discount: float) -> Tensor:
    """Returns R_t = sum over k >= 0 of discount^k r_(t+k) over the turns of each sample's episode: [B] float64.

    Args:
        rewards: [B] of each turn. discount: in [0, 1].
    """
    total = rewards.double().clone()
    backwards = sorted(range(len(total)), key=lambda n: (int(scores.episode[n]), -int(scores.turn[n])))
    for later, earlier in pairwise(backwards):
        if scores.episode[later] == scores.episode[earlier]:
            total[earlier] += discount ** int(scores.turn[later] - scores.turn[earlier]) * total[later]
    return total


def normalised(values: Tensor, group: Tensor, valid: Tensor, *, divides: bool, epsilon: float) -> Tensor:
    """Returns (value - mean) / (std + epsilon) within each group, the std unbiased: [B] float64.

    Without `divides` it is value - mean. Invalid samples, and groups of one or with equal values, get 0.
    """
    centred = values - group_mean(values, group, valid)
    spread = group_std(values, group, valid, unbiased=True)
    # discounted returns that are equal differ in their last bits, and their spread is then no spread
    is_spread = spread > 1e-12 * group_mean(values.abs(), group, valid)
    scaled = centred / torch.where(is_spread, spread + epsilon, 1.0) if divides else centred
    return torch.where(valid & is_spread, scaled, torch.zeros_like(scaled))


def joint(*names: Tensor) -> Tensor:
    """Returns group numbers [B] that are equal for samples that agree in all `names` [B]."""
    numbers: Tensor = torch.stack(names, 1).unique(dim=0, return_inverse=True)[1]
    return numbers
