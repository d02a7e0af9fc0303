"""Bases of losses on whole samples: log-ratios of paths, and pairs of samples within a group.

Maths: docs/maths/preference-losses.md#log-ratio-of-a-path
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, Scope
from mmrl.core.declarations import LossDeclaration
from mmrl.core.numerics import group_max, group_mean, group_numbers, group_sum

from .log_ratios import AnchoredLoss

Path = Literal["sum", "mean"]
Pairs = Literal["all", "extremes", "adjacent"]


@dataclass(frozen=True)
class PathLoss(AnchoredLoss):
    """A loss on the log-ratios of whole samples, log trained - log anchor; a loss adds `terms`, [B].

    The log-ratio of a sample is the sum (or mean) of those of its decisions, since it is the likelihood of the path: a
    decision that several leaves of a tree share counts wholly in each of them. Denoising steps count in the unit of
    their reduction: with `mean` the log-ratio is d times smaller than the true one, and beta as much larger.

    Where a formula is about a group, every member's term is the value of the group: with `normalise: sample` a group
    counts by its members, with `group` all groups count alike. Samples that take no part are in no group; a group with
    nothing to compare counts nothing.

    The formula reads rewards as they are (`LossBatch.scores`) unless the class documents otherwise; the advantage only
    selects the samples and groups that are learned from.

    Raises ValueError for settings out of range.
    """

    # The log-ratio of a sample is the `sum` of those of its decisions, or their `mean`, the length-normalised form.
    path: Path = "sum"

    scope: ClassVar[Scope] = "group"

    @property
    def declaration(self) -> LossDeclaration:
        return replace(super().declaration, min_group_size=2)

    def takes_part(self, batch: LossBatch) -> Tensor:
        """Returns the samples [B] (bool) that have a term: the members of groups of two or more."""
        members = present(batch)
        return members & (group_sum(members.double(), batch.group) >= 2)

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        counted = self.takes_part(batch)[:, None].to(batch.weight.dtype)
        return super().coefficients(replace(batch, weight=batch.weight * counted))

    def along(self, values: Tensor, is_there: Tensor) -> Tensor:
        """Returns the sum or mean [N] of values [N, K] over the decisions where `is_there` [N, K] is true."""
        total = torch.where(is_there, values, torch.zeros_like(values)).sum(1)
        return total if self.path == "sum" else total / is_there.sum(1).clamp(min=1)

    def of_samples(self, values: Tensor, batch: LossBatch) -> Tensor:
        """Returns the sum or mean [B] of values [B, K] over each sample's decisions."""
        return self.along(values, batch.weight > 0)


@dataclass(frozen=True)
class PairLoss(PathLoss):
    """A loss on pairs of samples of a group, the better sample first; a group's value is the mean over its pairs.

    Where samples tie for a place, each of them has the pairs of that place.
    """

    # Which pairs of a group: `all`, `extremes` (the best with the worst), `adjacent` (each with the next worse).
    pairs: Pairs = "all"

    has_ties: ClassVar[bool] = False  # whether `all` includes pairs of equal rewards

    def pair_rows(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        """Returns the rows of the better and of the worse sample of each pair: [N] int64 each."""
        if self.pairs == "all" and self.has_ties:
            return every_pair(batch.scores, batch.group, present(batch))
        return preferred_pairs(batch.scores, batch.group, present(batch), self.pairs)

    def takes_part(self, batch: LossBatch) -> Tensor:
        """Returns the members [B] (bool) of the groups that have a pair."""
        better, _ = self.pair_rows(batch)
        return present(batch) & (group_sum(_count(better, batch.group), batch.group) > 0)

    def of_groups(self, values: Tensor, better: Tensor, batch: LossBatch, empty: float = 0.0) -> Tensor:
        """Returns the mean [B] of the values [N] of the pairs in each sample's group; `empty` without a pair."""
        total = values.new_zeros(len(batch.group)).index_add(0, better, values)
        count = group_sum(_count(better, batch.group), batch.group).to(values.dtype)
        mean = group_sum(total, batch.group) / count.clamp(min=1)
        return torch.where(count > 0, mean, torch.full_like(mean, empty))


def preferred_pairs(scores: Tensor, group: Tensor, members: Tensor, which: Pairs) -> tuple[Tensor, Tensor]:
    """Returns the rows of the better and of the worse sample of each pair with different scores: [N] int64 each.

    Args:
        scores: [B].
        group: [B].
        members: [B] bool; other samples are in no pair.
        which: all; extremes: the best with the worst; adjacent: each with the next lower score of its group.
    """
    device, (scores, group, members) = scores.device, _on_host(scores, group, members)
    rows = members.nonzero().squeeze(1)
    index = group_numbers(group[rows])
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
    return rows[better].to(device), rows[worse].to(device)


def every_pair(scores: Tensor, group: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows of all pairs of a group, once each, including equal scores: [N] int64 each.

    The better sample comes first, as in `preferred_pairs`, which describes the arguments.
    """
    device, (scores, group, members) = scores.device, _on_host(scores, group, members)
    rows = members.nonzero().squeeze(1)
    own = group[rows]
    first, second = rows[(own[:, None] == own).triu(1).nonzero()].unbind(1)
    is_ordered = scores[first] >= scores[second]
    better, worse = torch.where(is_ordered, first, second), torch.where(is_ordered, second, first)
    return better.to(device), worse.to(device)


def _on_host(scores: Tensor, group: Tensor, members: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns scores, numbers of groups, and members [B] on the CPU, which waits for a GPU once."""
    parts = (scores, group_numbers(group), members)  # float64 holds each exactly
    scores, group, members = torch.stack([part.double() for part in parts]).cpu()
    return scores, group.long(), members.bool()


def centred(values: Tensor, batch: LossBatch) -> Tensor:
    """Returns `values` [B] minus their mean over each sample's group; 0 for samples that take no part."""
    members = present(batch)
    return torch.where(members, values - group_mean(values, batch.group, members), torch.zeros_like(values))


def present(batch: LossBatch) -> Tensor:
    """Returns the samples [B] (bool) that take part: those with a decision of weight above 0."""
    return (batch.weight > 0).any(1)


def _count(better: Tensor, group: Tensor) -> Tensor:
    """Returns the number [B] (float64) of pairs in which each sample is the better one."""
    ones = torch.ones(len(better), dtype=torch.float64, device=better.device)
    return torch.zeros(len(group), dtype=torch.float64, device=better.device).index_add(0, better, ones)
