"""What losses on whole samples share: log-ratios of paths, and pairs of samples within a group.

Maths: docs/maths/preference-losses.md#log-ratio-of-a-path
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, Scope
from mmrl.core.numerics import group_index, group_max, group_mean, group_sum

from .log_ratios import AnchoredLoss
from .settings import check_one_of

Path = Literal["sum", "mean"]
Pairs = Literal["all", "extremes", "adjacent"]


@dataclass(frozen=True)
class PathLoss(AnchoredLoss):
    """A loss on the log-ratios of whole samples, log trained - log anchor; adds `terms`, [B].

    The log-ratio of a sample is the sum (or mean) of those of its decisions: each counts wholly, one that several
    leaves of a tree share too, for it is the likelihood of the path. Denoising steps count in the unit of their
    reduction: with `mean` it is d times smaller than the true log-ratio, and beta as much larger.

    Where a formula is of a group, every member of the group has its value for a term: with `normalise: sample` a group
    counts by its members, with `group` all groups count alike. Samples that take no part are in no group; a group with
    nothing to compare counts nothing.

    Rewards are read as they are (`LossBatch.scores`) where the class does not say otherwise, so the advantage only says
    which samples and groups are learned from.

    Raises ValueError for settings out of range.
    """

    path: Path = "sum"  # of a sample's log-ratios; "mean" is the length-normalised form

    scope: ClassVar[Scope] = "group"
    min_group_size: ClassVar[int] = 2  # the smallest group it can learn from

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("path", self.path, get_args(Path))

    def takes_part(self, batch: LossBatch) -> Tensor:
        """[B] bool: samples with a term, which are the members of the groups that have two or more."""
        members = present(batch)
        return members & (group_sum(members.double(), batch.group) >= 2)

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        counted = self.takes_part(batch)[:, None].to(batch.weight.dtype)
        return super().coefficients(replace(batch, weight=batch.weight * counted))

    def along(self, values: Tensor, is_there: Tensor) -> Tensor:
        """[N] from values [N, K]: the sum or mean over the decisions that are there (bool)."""
        total = torch.where(is_there, values, torch.zeros_like(values)).sum(1)
        return total if self.path == "sum" else total / is_there.sum(1).clamp(min=1)

    def of_samples(self, values: Tensor, batch: LossBatch) -> Tensor:
        """[B] from values [B, K]: the sum or mean over each sample's decisions."""
        return self.along(values, batch.weight > 0)


@dataclass(frozen=True)
class PairLoss(PathLoss):
    """A loss on pairs of a group, the better sample first; a group's value is the mean over its pairs.

    `pairs`: all of them; `extremes`, the best with the worst; or `adjacent`, each with the next worse. Where samples
    tie for a place, each of them has the pairs of that place.
    """

    pairs: Pairs = "all"

    has_ties: ClassVar[bool] = False  # whether `all` holds pairs of equal rewards too

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("pairs", self.pairs, get_args(Pairs))

    def pair_rows(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        """Rows of the better and of the worse sample of each pair: [N] int64 each."""
        if self.pairs == "all" and self.has_ties:
            return every_pair(batch.scores, batch.group, present(batch))
        return preferred_pairs(batch.scores, batch.group, present(batch), self.pairs)

    def takes_part(self, batch: LossBatch) -> Tensor:
        """[B] bool: members of the groups that have a pair."""
        better, _ = self.pair_rows(batch)
        return present(batch) & (group_sum(_count(better, batch.group), batch.group) > 0)

    def of_groups(self, values: Tensor, better: Tensor, batch: LossBatch, empty: float = 0.0) -> Tensor:
        """[B]: the mean of the pairs' values [N] in each sample's group; `empty` where there is no pair."""
        total = values.new_zeros(len(batch.group)).index_add(0, better, values)
        count = group_sum(_count(better, batch.group), batch.group).to(values.dtype)
        mean = group_sum(total, batch.group) / count.clamp(min=1)
        return torch.where(count > 0, mean, torch.full_like(mean, empty))


def preferred_pairs(scores: Tensor, group: Tensor, members: Tensor, which: Pairs) -> tuple[Tensor, Tensor]:
    """Rows of the better and of the worse sample of each pair of a group with different scores: [N] int64 each.

    Args:
        scores, group: [B]. members: [B] bool; others are in no pair.
        which: all; extremes: the best with the worst; adjacent: each with the next lower score of its group.
    """
    rows = members.nonzero().squeeze(1)
    index, _ = group_index(group[rows])
    # float64 holds group numbers and float32 scores exactly; rows come out sorted by group, then by score
    by_group = torch.stack([index.double(), scores[rows].double()], 1)
    place = by_group.unique(dim=0, return_inverse=True)[1]
    is_pair = (index[:, None] == index) & (place[:, None] > place)
    if which == "adjacent":
        is_pair &= place[:, None] == place + 1
    elif which == "extremes":
        best, worst = group_max(place, index), -group_max(-place, index)
        is_pair &= (place == best)[:, None] & (place == worst)
    better, worse = is_pair.nonzero().unbind(1)
    return rows[better], rows[worse]


def every_pair(scores: Tensor, group: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """The same of all pairs of a group, those of equal scores included, once each. Arguments as above."""
    rows = members.nonzero().squeeze(1)
    own = group[rows]
    first, second = rows[(own[:, None] == own).triu(1).nonzero()].unbind(1)
    is_ordered = scores[first] >= scores[second]
    return torch.where(is_ordered, first, second), torch.where(is_ordered, second, first)


def centred(values: Tensor, batch: LossBatch) -> Tensor:
    """[B]: `values` [B] less their mean over the members of each sample's group; 0 for samples that take no part."""
    members = present(batch)
    return torch.where(members, values - group_mean(values, batch.group, members), torch.zeros_like(values))


def present(batch: LossBatch) -> Tensor:
    """[B] bool: samples with a decision that counts; those that take no part have none."""
    return (batch.weight > 0).any(1)


def _count(better: Tensor, group: Tensor) -> Tensor:
    """[B] float64: in how many pairs each sample is the better one."""
    ones = torch.ones(len(better), dtype=torch.float64, device=better.device)
    return torch.zeros(len(group), dtype=torch.float64, device=better.device).index_add(0, better, ones)
