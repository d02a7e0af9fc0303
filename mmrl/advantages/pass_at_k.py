"""Advantages for pass@k: the mean value of the subsets of k samples that include a sample."""

from dataclasses import dataclass
from functools import cache
from math import comb
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_index


@dataclass(frozen=True)
class PassAtK(Checked):
    """A_i = (mean value of the subsets of k with sample i - mean of all subsets of k) / std of all subsets of k.

    Chen et al. 2025, "Pass@k Training for Adaptively Balancing Exploration and Exploitation of Large Reasoning Models",
    arXiv 2508.10751, section 2.4, where a subset has value 1 if it has a success: with n samples of which m fail,
    p = 1 - C(m, k) / C(n, k), a success gets (1 - p) / s and a failure (1 - p - C(m-1, k-1) / C(n-1, k-1)) / s with
    s = sqrt(p (1 - p)). Here the value of a subset is its best reward, which is the same for rewards of 0 and 1 and
    also covers graded rewards. With k = 1 this is GRPO's advantage without epsilon and clip.

    Invalid samples are in no subset and get 0. All members get 0 in a group whose subsets have equal values: where its
    best n - k + 1 rewards are equal, or it has at most k valid members.

    Raises ValueError for a `k` below 1.
    """

    k: Annotated[int, Field(ge=1)] = 4  # samples of a subset; 1: `grpo` without `epsilon` and `clip`

    @property
    def declaration(self) -> AdvantageDeclaration:
        """The declaration: a group of k has a single subset, and the turns of an episode are no k attempts."""
        return AdvantageDeclaration(min_group_size=self.k + 1, requires_single_answers=True)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        total, advantages = scores.total.double(), torch.zeros(len(scores.group), dtype=torch.float64)
        index, count = group_index(scores.group)
        for group in range(count):
            members = ((index == group) & scores.valid).nonzero()[:, 0]
            order = members[total[members].argsort(stable=True)]
            if len(order) > self.k:
                advantages[order] = best_of_k(total[order], self.k)
        return advantages.float()


def best_of_k(rewards: Tensor, k: int) -> Tensor:
    """Returns the advantages [n] of ascending rewards [n], float64, 1 <= k < n; 0 where all subsets are equal."""
    if rewards[k - 1] == rewards[-1]:  # the best of the worst subset, and of the best
        return torch.zeros_like(rewards)
    chance, chance_with = chances(len(rewards), k)
    mean = (chance * rewards).sum()
    std = (chance * (rewards - mean).square()).sum().sqrt()
    return (chance_with @ (rewards - mean)) / std


@cache
def chances(n: int, k: int) -> tuple[Tensor, Tensor]:
    """Returns the probabilities that the j-th of n ascending samples is the best of a random subset of k.

    The first are those of all subsets [n], the second those of the subsets with sample i, in row i of [n, n]. Of equal
    rewards the later sample is the best.
    """
    chance = torch.tensor([comb(j, k - 1) / comb(n, k) for j in range(n)], dtype=torch.float64)
    with_it = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        with_it[i, i] = comb(i, k - 1) / comb(n - 1, k - 1)
        for j in range(i + 1, n if k > 1 else 0):
            with_it[i, j] = comb(j - 1, k - 2) / comb(n - 1, k - 1)
    return chance, with_it
