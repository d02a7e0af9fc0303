"""What advantages of episodes share: the reward of each turn, what follows it, and normalising within a group.

Maths: docs/maths/agents.md#returns
"""

from itertools import pairwise

import torch
from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.numerics import group_mean, group_std, group_sum


def whole_episodes(scores: Scores) -> Tensor:
    """[B] bool: samples of episodes of which every turn is valid; of others the return is not known."""
    return group_sum((~scores.valid).double(), scores.episode) == 0


def turn_rewards(scores: Scores) -> Tensor:
    """[B] float64: the weighted rewards given for each turn.

    Those of a whole episode, and those that compare a group, are given once, for the episode's last turn.
    """
    place = torch.unique(scores.episode, return_inverse=True)[1]
    last = torch.zeros_like(place).scatter_reduce(0, place, scores.turn, "amax", include_self=False)[place]
    total = torch.zeros(len(place), dtype=torch.float64)
    granularities = scores.granularities or ("sample",) * len(scores.names)
    for values, weight, granularity in zip(scores.values.unbind(1), scores.weights, granularities, strict=True):
        if weight != 0:
            is_given = scores.turn == last if granularity in ("episode", "group") else torch.ones_like(scores.valid)
            total += torch.where(is_given, weight * values.double(), 0.0)
    return total


def returns(rewards: Tensor, scores: Scores, discount: float) -> Tensor:
    """[B] float64: R_t = sum over k >= 0 of discount^k r_(t+k), over the turns of the sample's episode.

    rewards: [B] of each turn. discount: in [0, 1].
    """
    total = rewards.double().clone()
    backwards = sorted(range(len(total)), key=lambda n: (int(scores.episode[n]), -int(scores.turn[n])))
    for later, earlier in pairwise(backwards):
        if scores.episode[later] == scores.episode[earlier]:
            total[earlier] += discount ** int(scores.turn[later] - scores.turn[earlier]) * total[later]
    return total


def normalised(values: Tensor, group: Tensor, valid: Tensor, *, divides: bool, epsilon: float) -> Tensor:
    """[B] float64: (value - mean) / (std + epsilon) of its group, the std unbiased; without `divides` the difference.

    0 for invalid samples, and in groups of one or with equal values.
    """
    centred = values - group_mean(values, group, valid)
    spread = group_std(values, group, valid, unbiased=True)
    # discounted returns that are equal differ in their last bits, and their spread is then no spread
    is_spread = spread > 1e-12 * group_mean(values.abs(), group, valid)
    scaled = centred / torch.where(is_spread, spread + epsilon, 1.0) if divides else centred
    return torch.where(valid & is_spread, scaled, torch.zeros_like(scaled))


def joint(*names: Tensor) -> Tensor:
    """[B] group numbers: samples are together where they agree in all `names` [B]."""
    numbers: Tensor = torch.stack(names, 1).unique(dim=0, return_inverse=True)[1]
    return numbers
