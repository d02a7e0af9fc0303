"""The tree of samples that share decisions: its segments from fork to fork, and the values of its places.

Maths: docs/maths/trees-and-paths.md#credit-in-trees-of-answers
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmrl.core.data import Paths, Scores
from mmrl.core.numerics import group_index, group_sum

Fusion = Literal["leaves", "children"]


@dataclass(frozen=True)
class Stretches:
    """The stretches on the paths of valid samples [B]: at most D for each sample, each up to a fork or to the end.

    The value of a stretch is that of the place where it ends: the mean reward of the samples that pass the place
    (`leaves`), or the mean of its children's values (`children`; every child counts alike). Numbers are float64.
    """

    name: Tensor  # [B, D] int64: equal for samples on the same stretch; the root of the group where there is none
    root: Tensor  # [B] int64: a name of its own for each group
    leaves: Tensor  # [B, D]: valid samples that pass the stretch; 0 where there is none
    value: Tensor  # [B, D]
    start: Tensor  # [B, D]: value of the place where the stretch begins
    origin: Tensor  # [B] value of the group's root
    depth: Tensor  # [B, K] int64: the number of the stretch of each decision
    is_there: Tensor  # [B, K] bool: a decision of a valid sample

    @classmethod
    def of(cls, scores: Scores, paths: Paths | None, fusion: Fusion) -> "Stretches":
        """Returns the stretches of samples with these paths; without `paths` each sample is one decision."""
        edges = torch.arange(len(scores.group))[:, None] if paths is None else paths.edge
        is_there = (edges >= 0) & scores.valid[:, None]
        root = group_index(scores.group)[0] * (edges.max() + 2 if edges.numel() else 1)
        names = root[:, None] + edges + 1  # [B, K]
        passed = torch.stack([_passed(names[:, k], is_there[:, k]) for k in range(edges.shape[1])] or [root], 1)
        left = torch.nn.functional.pad(passed, (1, 0))[:, :-1]
        begins = is_there & (passed != left) if edges.shape[1] else is_there
        depth = (begins.cumsum(1) - 1).clamp(min=0)
        count = int(begins.sum(1).max()) if begins.numel() else 0
        rows, columns = begins.nonzero().unbind(1)
        name, leaves = root[:, None].repeat(1, count), torch.zeros(len(root), count, dtype=torch.float64)
        name[rows, depth[rows, columns]] = names[rows, columns]
        leaves[rows, depth[rows, columns]] = passed[rows, columns].double()
        reward = torch.where(scores.valid, scores.total, 0.0).double()
        value, origin = _values(reward, scores.valid, name, leaves, root, fusion)
        start = torch.cat([origin[:, None], value], 1)[:, :count]
        return cls(name, root, leaves, value, start, origin, depth, is_there)

    @property
    def share(self) -> Tensor:
        """The share [B, D] of each sample in a stretch, so that a sum over samples counts each stretch once."""
        return torch.where(self.leaves > 0, 1 / self.leaves.clamp(min=1), 0.0)

    def gain(self, start: Tensor) -> Tensor:
        """Returns value - start [B, D], 0 where they differ only in their last bits, as means of equal numbers may."""
        difference = self.value - start
        return torch.where(difference.abs() > 1e-12 * self.value.abs(), difference, 0.0)

    def of_decisions(self, values: Tensor) -> Tensor:
        """Returns the values [B, D] of stretches at each of their decisions: [B, K] float32, 0 without a decision."""
        if not values.shape[1]:
            return torch.zeros(self.is_there.shape)
        return torch.where(self.is_there, values.gather(1, self.depth), 0.0).float()


def _passed(names: Tensor, is_there: Tensor) -> Tensor:
    """Returns the number [B] (int64) of samples that pass each sample's decision, 0 where there is none."""
    return torch.where(is_there, group_sum(is_there.long(), names), 0)


def _values(
    reward: Tensor, valid: Tensor, name: Tensor, leaves: Tensor, root: Tensor, fusion: Fusion
) -> tuple[Tensor, Tensor]:
    """Returns the values of stretches [B, D] and of the roots [B], computed from the ends up."""
    value, below = torch.zeros_like(leaves), reward
    share = valid.double()  # the weight of a sample in the mean over the children of the current place
    for depth in reversed(range(name.shape[1])):
        here = leaves[:, depth] > 0
        value[:, depth] = _mean(below, share * here, name[:, depth])
        below = torch.where(here, value[:, depth], below)
        if fusion == "children":
            share = torch.where(here, 1 / leaves[:, depth].clamp(min=1), share)
    return value, _mean(below, share, root)


def _mean(values: Tensor, weight: Tensor, name: Tensor) -> Tensor:
    """Returns the weighted mean [B] over the samples of each name, 0 where all weights are 0."""
    total = group_sum(weight, name)
    return group_sum(weight * values, name) / torch.where(total > 0, total, 1.0)
