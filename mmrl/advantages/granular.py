"""Advantages of decisions that are part of several comparisons."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_sum

from .base.wrapper import Wrapper
from .grpo import Grpo


def _grpo() -> Grpo:
    """Returns the inner advantage of bcmi/Granular-GRPO, without a clip, since the sum is clipped."""
    return Grpo(is_unbiased=True, epsilon=1e-8, clip=None)


@dataclass(frozen=True)
class Granular(Wrapper):
    """A = sum over granularities j of A_j, clipped to +-clip: the sum over the groups that share a decision.

    Zhou et al. 2025, G2RPO, arXiv 2510.01982, multi-granularity advantage integration. The advantage of a sample is
    that of `inner` within its own group. The advantage of a decision is the sum, over the groups that share it, of the
    mean over its samples in the group. Where no two samples share a decision, this is the inner advantage.

    Raises ValueError for a clip that is not above 0.
    """

    inner: Advantage = field(default_factory=_grpo)  # the section of the advantage in each comparison
    clip: Annotated[float, Field(gt=0)] | None = 5.0  # largest size of the sum; `null`: any

    @property
    def declaration(self) -> AdvantageDeclaration:
        return replace(super().declaration, is_per_decision=True)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32, 0 for invalid samples; without `paths` [B, 1]."""
        inner = self.inner(scores, paths)
        inner = inner if inner.dim() == 2 else inner[:, None]
        if paths is not None:
            inner = self._integrated(inner.expand(paths.edge.shape), scores, paths.edge)
        return inner if self.clip is None else inner.clamp(-self.clip, self.clip)

    def _integrated(self, inner: Tensor, scores: Scores, edges: Tensor) -> Tensor:
        """Returns the sums over the groups [B, K], float32."""
        summed = torch.zeros_like(inner)
        for k in range(edges.shape[1]):
            there = ((edges[:, k] >= 0) & scores.valid).nonzero().squeeze(1)
            decision = _pairs(scores.prompt_index[there], edges[there, k])
            own = _pairs(scores.group[there], edges[there, k])  # the same, of one group
            members = group_sum(torch.ones(len(there), dtype=torch.float64), own)
            summed[there, k] = group_sum(inner[there, k].double() / members, decision).float()
        return summed


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """Returns numbers [n] that are equal where `first` and `second` are both equal."""
    numbers: Tensor = torch.stack([first, second], 1).unique(dim=0, return_inverse=True)[1]
    return numbers
