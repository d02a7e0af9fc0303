"""The best and the worst sample of a group; the others take no part."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.data import Paths, Scores
from mmrl.core.numerics import group_index


@dataclass(frozen=True)
class BestWorst:
    """1 for the best sample of a group, -1 for the worst, 0 for the others, which are left out of the update.

    For losses on pairs, since the update needs no network calls for the others: online DPO takes the best and the worst
    of a group (Dong et al. 2024, "RLHF Workflow", arXiv 2405.07863). Samples that tie for a place all have it. A group
    whose valid samples all have the same score has neither place.
    """

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        place, count = group_index(scores.group)
        total = torch.where(scores.valid, scores.total, torch.zeros_like(scores.total))
        best, worst = (_highest(side * total, scores.valid, place, count) for side in (1, -1))
        return torch.where(scores.valid, best.float() - worst.float(), 0.0)

    def update_mask(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the best and the worst samples [B] (bool)."""
        return self(scores, paths) != 0


def _highest(values: Tensor, valid: Tensor, place: Tensor, count: int) -> Tensor:
    """Returns where valid values [B] are the highest of their group, whose number below `count` is `place` [B]."""
    masked = values.masked_fill(~valid, -torch.inf)
    highest = masked.new_full((count,), -torch.inf).scatter_reduce(0, place, masked, "amax")
    return valid & (masked == highest[place])
