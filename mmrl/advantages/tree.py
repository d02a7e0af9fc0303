"""Advantages of the decisions of a tree: the reward behind a branch compared with the other branches of its depth.

Maths: docs/maths/trees-and-paths.md#credit-in-trees-of-denoising-paths
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_index, group_max, group_mean, group_sum


@dataclass(frozen=True)
class Tree(Checked):
    """A = (R - mean) / (std + epsilon) of a node, over the group's nodes of its depth; a decision has its child's A.

    Li et al. 2025, "BranchGRPO", arXiv 2509.06040; the numbers are those of Fredreic1849/BranchGRPO. The reward R of a
    node is the mean reward of its leaves (`fusion: mean`), or the mean R of its children, weighted by the softmax of
    the log-probs of the decisions that lead to them (`log_prob`; of a latent in the modality's unit, see `reduction`).
    The std is unbiased; a depth of one node, or with a std below `min_std`, gets 0. Shared decisions define the tree,
    and the depth of a node is the number of decisions that lead to it. Without shared decisions each depth is a
    comparison of all samples, which is GRPO.

    `width` leaves decisions behind the last split out of the update, never out of these statistics. `siblings` keeps
    those of the best of the leaves that parted last, a share `keep` of them (at least one; half of two: the paper's
    Parent-Top1). `extremes` keeps those of the best and the worst leaves of the group, a share `keep` of all and at
    least two. (The code's first mode keeps the first half of each leaf's last decisions instead.)

    Invalid samples enter no statistic and get 0. Raises ValueError for settings out of range.
    """

    # The reward of a node: the `mean` of its leaves' rewards, or that of its children by their likelihood (`log_prob`).
    fusion: Literal["mean", "log_prob"] = "mean"
    # Decisions behind the last split that are learned from: `all`, or those of the best of the leaves that parted last
    # (`siblings`), or of the best and the worst leaves of the group (`extremes`).
    width: Literal["all", "siblings", "extremes"] = "all"
    keep: Annotated[float, Field(gt=0, le=1)] = 0.5  # share of the leaves that `siblings` and `extremes` keep
    min_std: Annotated[float, Field(ge=0)] = 1e-6  # a depth with a smaller spread gets 0
    epsilon: Annotated[float, Field(ge=0)] = 1e-8  # added to the standard deviation
    clip: Annotated[float, Field(gt=0)] | None = 5.0  # largest size of an advantage; `null`: any

    @property
    def declaration(self) -> AdvantageDeclaration:
        """The declaration: the fusion `log_prob` requires the log-probs of decisions."""
        return AdvantageDeclaration(
            requires=frozenset({"log_prob"} if self.fusion == "log_prob" else ()),
            compares_branches=True,
            is_per_decision=True,
            weighs_by_length=True,
        )

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32; without `paths` [B, 1], as if samples were decisions."""
        edges = torch.arange(len(scores.group))[:, None] if paths is None else paths.edge
        is_there = (edges >= 0) & scores.valid[:, None]
        node = _nodes(edges, scores.group)
        reward = torch.where(scores.valid, scores.total, 0.0).double()
        if self.fusion == "log_prob" and paths is not None and is_there.any():
            fused = _fused_by_log_prob(reward, node, is_there, paths.facts["log_prob"].double())
        else:
            fused = _by_column(lambda k: group_mean(reward, node[:, k], is_there[:, k]), node)
        return _by_column(
            lambda k: self._normalised(fused[:, k], node[:, k], scores.group, is_there[:, k]), node
        ).float()

    def update_mask(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the decisions [B, K] (bool) that are learned from; all samples [B] where all decisions are."""
        if self.width == "all" or paths is None or not paths.edge.shape[1]:
            return torch.ones(len(scores.group), dtype=torch.bool)
        node, group = _nodes(paths.edge, scores.group), group_index(scores.group)[0]
        shares = _by_column(lambda k: _share(node[:, k], paths.edge[:, k] >= 0), node)
        is_shared = (shares > 0) & (shares < 1)  # [B, K]
        split = group_max(torch.where(is_shared, torch.arange(1, node.shape[1] + 1), 0).amax(1), group)  # [B]
        if self.width == "siblings":  # the node where the leaves parted last
            parted = node.gather(1, (split - 1).clamp(min=0)[:, None]).squeeze(1)
            group = torch.where(split > 0, parted, -1 - group)
        is_behind = torch.arange(node.shape[1]) > split[:, None]
        return ~is_behind | self._is_kept(scores, group, paths.edge.amax(1))[:, None]

    def _is_kept(self, scores: Scores, family: Tensor, last: Tensor) -> Tensor:
        """Returns the best of each family [B] (bool), with `extremes` also the worst; `last` decides between equals."""
        kept, total = torch.zeros(len(family), dtype=torch.bool), scores.total.tolist()
        for one in family.unique().tolist():
            rows = ((family == one) & scores.valid).nonzero().squeeze(1).tolist()
            rows.sort(key=lambda row: (-total[row], int(last[row])))
            count = int(self.keep * len(rows) + 1e-9)
            best = max(1, count if self.width == "siblings" else count // 2)
            worst = 0 if self.width == "siblings" else max(1, count - best)
            kept[rows[:best] + rows[max(0, len(rows) - worst) :]] = True
        return kept

    def _normalised(self, rewards: Tensor, node: Tensor, group: Tensor, is_there: Tensor) -> Tensor:
        """Returns the advantages of one depth [B], float64, where each node counts once; 0 without a node."""
        share = _share(node, is_there)
        count = group_sum(share, group).round()
        mean = group_sum(share * rewards, group) / count.clamp(min=1)
        spread = (group_sum(share * (rewards - mean).square(), group) / (count - 1).clamp(min=1)).sqrt()
        # means of equal numbers differ in their last bits, and their spread is then no spread
        is_spread = (count > 1) & (spread >= self.min_std) & (spread > 1e-12 * mean.abs())
        scaled = (rewards - mean) / (spread + self.epsilon)
        if self.clip is not None:
            scaled = scaled.clamp(-self.clip, self.clip)
        return torch.where(is_there & is_spread, scaled, 0.0)


def _nodes(edges: Tensor, group: Tensor) -> Tensor:
    """Returns the number [B, K] of the node behind each decision, within its group; one more without a decision."""
    return group_index(group)[0][:, None] * (edges.max() + 2 if edges.numel() else 1) + edges + 1


def _share(node: Tensor, is_there: Tensor) -> Tensor:
    """Returns 1 / the number of samples of the same node: [B] float64, 0 without a node."""
    leaves = group_sum(is_there.double(), node)
    return torch.where(is_there, 1 / leaves.clamp(min=1), 0.0)


def _fused_by_log_prob(reward: Tensor, node: Tensor, is_there: Tensor, log_prob: Tensor) -> Tensor:
    """Returns the reward of the node behind each decision, by its children's log-probs: [B, K] float64."""
    below, likely, share = reward, torch.zeros_like(reward), is_there.any(1).double()  # of the child on each path
    fused = torch.zeros(node.shape, dtype=torch.float64)
    for k in reversed(range(node.shape[1])):
        here = is_there[:, k]
        # a child counts by its log-prob, however many leaves it has
        weight = torch.where(here, share * (likely - group_max(likely, node[:, k])).exp(), 0.0)
        total = group_sum(weight, node[:, k])
        fused[:, k] = group_sum(weight * below, node[:, k]) / torch.where(total > 0, total, 1.0)
        below, likely = torch.where(here, fused[:, k], below), torch.where(here, log_prob[:, k], likely)
        share = torch.where(here, _share(node[:, k], here), share)
    return fused


def _by_column(column: Callable[[int], Tensor], like: Tensor) -> Tensor:
    """Returns the K columns [B] side by side: [B, K]."""
    columns = [column(k) for k in range(like.shape[1])]
    return torch.stack(columns, 1) if columns else torch.zeros(like.shape, dtype=torch.float64)
