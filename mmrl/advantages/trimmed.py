"""Group-relative advantages whose mean and std leave out the worst samples of a group."""

from dataclasses import dataclass
from math import floor
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_rank, group_sum

from .grpo import Grpo


@dataclass(frozen=True)
class Trimmed(Grpo):
    """A = (R - mean) / (std + epsilon), both of the group without its lowest floor(n ratio) rewards; clipped.

    Li et al. 2025, "MixGRPO", arXiv 2507.21802, the `trimmed_ratio` of Tencent-Hunyuan/MixGRPO: a failed sample with a
    reward far below all others no longer sets the scale. Trimmed samples still get their own advantages, down to the
    clip. `is_unbiased` and `epsilon` are those of that code; the ratio 0.1 is ours, and 0 in the code unless set. Where
    the remaining rewards are all equal the group gets 0 (in that code the trimmed samples get the clip). The other
    settings are those of `grpo`; with a ratio of 0 this is `grpo`.

    Raises ValueError for settings out of range.
    """

    is_unbiased: bool = True  # for `std: group` only: divide by n - 1
    epsilon: Annotated[float, Field(ge=0)] = 1e-8  # added to the standard deviation
    # Share of a group, rounded down, that is left out of mean and standard deviation; 0: `grpo`.
    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.1

    @property
    def declaration(self) -> AdvantageDeclaration:
        """The declaration: in the smallest group two samples remain to be compared."""
        size = max(2, int(1 / (1 - self.ratio)) - 1)  # size (1 - ratio) > 1 from about here on
        while size - floor(size * self.ratio + 1e-9) < 2:
            size += 1
        return AdvantageDeclaration(min_group_size=size)

    def _num_trimmed(self, size: Tensor) -> Tensor:
        """Returns the number of samples that are left out of groups of these sizes."""
        return (size * self.ratio + 1e-9).floor()  # 0.29 * 100 is 28.999...

    def counted(self, total: Tensor, scores: Scores) -> Tensor:
        """Returns the valid samples [B] (bool) without the lowest of their group; at least one of each group."""
        size = group_sum(scores.valid.long(), scores.group)
        return scores.valid & (group_rank(total, scores.group, scores.valid) >= self._num_trimmed(size))
