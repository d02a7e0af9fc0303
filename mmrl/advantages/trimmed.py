"""Group-relative advantages whose mean and std leave the worst samples of a group out."""

from dataclasses import dataclass
from itertools import count
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_rank, group_sum

from .grpo import Grpo


@dataclass(frozen=True)
class Trimmed(Grpo):
    """A = (R - mean) / (std + epsilon), both of the group without its lowest floor(n ratio) rewards; clipped.

    Li et al. 2025, "MixGRPO", arXiv 2507.21802, as `trimmed_ratio` of Tencent-Hunyuan/MixGRPO has it: a failed sample
    with a reward far below all others no longer sets the scale. It still gets its own advantage, down to the clip.
    `is_unbiased` and `epsilon` are those of that code; 0.1 is ours, there it is 0 unless set. Where those that are left
    are all equal the group gets 0 (in that code the others the clip). The other settings are those of `grpo`; with a
    ratio of 0 it is `grpo`.

    Raises ValueError for settings out of range.
    """

    is_unbiased: bool = True
    epsilon: Annotated[float, Field(ge=0)] = 1e-8
    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.1

    @property
    def declaration(self) -> AdvantageDeclaration:
        """Its smallest group is the smallest of which two samples are left to compare."""
        sizes = (size for size in count(2) if size - self._num_trimmed(torch.tensor(size)) >= 2)
        return AdvantageDeclaration(min_group_size=next(sizes))

    def _num_trimmed(self, size: Tensor) -> Tensor:
        """How many of so many samples are left out."""
        return (size * self.ratio + 1e-9).floor()  # 0.29 * 100 is 28.999...

    def counted(self, total: Tensor, scores: Scores) -> Tensor:
        """[B] bool: the valid samples but for the lowest of their group; at least one of each."""
        size = group_sum(scores.valid.long(), scores.group)
        return scores.valid & (group_rank(total, scores.group, scores.valid) >= self._num_trimmed(size))
