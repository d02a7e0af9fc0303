"""Advantages of a group divided by their quasi-norm, which is smaller where few samples stand out."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.numerics import group_sum

from .base.wrapper import Wrapper
from .grpo import Grpo


@dataclass(frozen=True)
class QuasiNorm(Wrapper):
    """A / (sum over the group of |A|^p)^(1/p), A the inner advantages.

    He et al. 2025, "Neighbor GRPO", arXiv 2511.16955, eq. 11, with its best p. At p = 2 the advantages of every group
    have a root sum of squares of 1; with the std of `grpo` it is sqrt(n) for n members. Below 2 the root sum of squares
    is smaller where all members are about as far from the mean (flat rewards, at least n^(1/2 - 1/p)) than where few
    members stand out. The scale of the inner advantages does not matter.

    Raises ValueError for a `p` outside of (0, 2], and for an inner advantage of single decisions.
    """

    inner: Advantage = field(default_factory=Grpo)  # the section of the advantage that is divided
    # The exponent of the quasi-norm; at 2 all groups have the same length, that of `grpo` over the root of their size.
    p: Annotated[float, Field(gt=0, le=2)] = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.declaration.is_per_decision:
            raise ValueError("inner must give one number for each sample, as 'grpo' and 'rloo' do")

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        inner = self.inner(scores, paths).double()
        norm = group_sum(inner.abs() ** self.p, scores.group) ** (1 / self.p)
        return torch.where(norm > 0, inner / norm, torch.zeros_like(inner)).float()
