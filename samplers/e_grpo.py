"""The sampler of E-GRPO: steps of little entropy are merged into one of much."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from mmrl.core.keys import GroupKey

from .base.fans import FanSampler


@dataclass(frozen=True)
class EGRPO(FanSampler):
    """Fans whose random steps span several steps of the grid (E-GRPO, Zhang et al. 2026, arXiv 2601.00423).

    The entropy of a random step is log(std) + (1 + log(2 pi)) / 2 for each element, and falls along the grid; steps of
    little entropy are merged until one jump has enough. `merged`: how many steps of the grid each jump spans, one jump
    beginning where the one before ends, from step 0. The default is that of shengjun-zhang/VisualGRPO, whose jumps have
    stds 0.70, 0.72, 0.75 and 0.68 (16 steps, shift 3), where unmerged ones fall to 0.37. All jumps leave the one ODE
    anchor, 12 children each (`group_size: 12`), and each is compared with its siblings only. The authors' code goes on
    from the end of a jump as if only one step had been made; here the ODE goes on at the level that was reached.
    """

    num_steps: int = 16
    merged: tuple[int, ...] = (1, 1, 2, 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.merged or min(self.merged) < 1 or sum(self.merged) >= self.num_steps:
            raise ValueError(
                f"merged must be counts of steps, at least 1, that leave the last of the {self.num_steps} steps out, "
                f"got {list(self.merged)}"
            )

    def jumps(self, key: GroupKey) -> Sequence[tuple[int, int]]:
        return list(pairwise(accumulate(self.merged, initial=0)))
