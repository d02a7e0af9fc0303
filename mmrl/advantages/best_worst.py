"""The best and the worst of a group; the rest takes no part."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.data import Paths, Scores
from mmrl.core.numerics import group_index


@dataclass(frozen=True)
class BestWorst:
    """1 for the best of a group, -1 for the worst, 0 for all else, which is left out of the update altogether.

    For losses on pairs, whose network calls for all others it saves: online DPO takes the best and the worst of a group
    (Dong et al. 2024, "RLHF Workflow", arXiv 2405.07863). Samples that tie for a place all have it; a group in which
    all valid samples score the same has neither.
    """

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B] float32."""
        place, count = group_index(scores.group)
        total = torch.where(scores.valid, scores.total, torch.zeros_like(scores.total))
        best, worst = (_highest(side * total, scores.valid, place, count) for side in (1, -1))
        return torch.where(scores.valid, best.float() - worst.float(), 0.0)

    def update_mask(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B] bool."""
        return self(scores, paths) != 0


def _highest(values: Tensor, valid: Tensor, place: Tensor, count: int) -> Tensor:
    """[B] bool: the highest of the valid values [B] of each group; `place` [B] is the group's number below `count`."""
    seen = values.masked_fill(~valid, -torch.inf)
    highest = seen.new_full((count,), -torch.inf).scatter_reduce(0, place, seen, "amax")
    return valid & (seen == highest[place])
