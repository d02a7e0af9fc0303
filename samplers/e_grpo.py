"""The sampler of E-GRPO: steps of low entropy are merged into steps of high entropy."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.core.numerics import MOST

from .base.fans import FanSampler


@dataclass(frozen=True)
class EGRPO(FanSampler):
    """Fans whose random steps span several steps of the grid (E-GRPO, Zhang et al. 2026, arXiv 2601.00423).

    The entropy of a random step is log(std) + (1 + log(2 pi)) / 2 for each element, and falls along the grid; steps of
    low entropy are merged until the entropy of the jump is high enough. The default of `merged` is that of
    shengjun-zhang/VisualGRPO, whose jumps have stds 0.70, 0.72, 0.75 and 0.68 (16 steps, shift 3); those of unmerged
    steps fall to 0.37. All jumps leave the same ODE anchor, with 12 children each (`group_size: 12`), and each child is
    compared with its siblings only. The authors' code goes on from the end of a jump as if only one step had been made;
    here the ODE goes on at the level that was reached.
    """

    num_steps: Annotated[int, Field(ge=1, le=MOST)] = 16  # denoising steps; the paper's value
    # Steps of the grid that each random step spans; each begins where the one before ends, the first at step 0.
    merged: tuple[Annotated[int, Field(ge=1)], ...] = (1, 1, 2, 3)

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for jumps that reach beyond the grid."""
        super().__post_init__()
        if not self.merged or sum(self.merged) >= self.num_steps:
            raise ValueError(
                f"merged must be counts of steps, at least 1, that leave the last of the {self.num_steps} steps out, "
                f"got {list(self.merged)}"
            )

    def jumps(self, key: GroupKey) -> Sequence[tuple[int, int]]:
        return list(pairwise(accumulate(self.merged, initial=0)))
