"""Group-relative advantages against a quantile of the group instead of its mean."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.data import Paths, Scores
from mmrl.core.numerics import group_rank, group_sum

from .grpo import Grpo


@dataclass(frozen=True)
class Quantile(Grpo):
    """A = (R - Q) / (std + epsilon), clipped, with Q the smallest reward that at least a share `k` does not exceed.

    Wu et al. 2025, "Quantile Advantage Estimation: Stabilizing RLVR for LLM Reasoning", arXiv 2509.22611: Q = inf{x:
    F(x) >= k} with the group's empirical distribution F. For rewards of 0 and 1, a group in which at most a share 1 - k
    succeeds learns from its successes alone, and any other group from its failures alone. The std is the plain one. The
    other settings are those of `grpo`.

    Raises ValueError for a `k` that is not in (0, 1].
    """

    # The baseline is the smallest reward that at least this share of the group does not exceed.
    k: Annotated[float, Field(gt=0, le=1)] = 0.4

    def baseline(self, total: Tensor, counted: Tensor, scores: Scores, paths: Paths | None) -> Tensor:
        """Returns the baselines [B], float64."""
        size = group_sum(counted.long(), scores.group)
        rank = (size * self.k - 1e-9).ceil() - 1  # 0.1 * 30 is 3.0000000000000004
        is_quantile = counted & (group_rank(total, scores.group, counted) == rank)
        return group_sum(torch.where(is_quantile, total, 0.0), scores.group)
