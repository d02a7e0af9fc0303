"""Reward-weighted regression: supervised fine-tuning with a weight for each sample that grows with its score."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import group_index, group_sum

from .base.settings import check_above, check_one_of
from .sft import Sft

Among = Literal["all", "group"]


@dataclass(frozen=True)
class Rwr(Sft):
    """The loss of `sft` with each sample counted exp(r / beta) times, at most `weight_max`.

    Peters & Schaal 2007, "Reinforcement Learning by Reward-weighted Regression for Operational Space Control", eq. 6;
    for images Flow-RWR of Liu et al. 2025, arXiv 2501.13918, section 4 (the weights of Lee et al. 2023, arXiv
    2302.12192, are the rewards themselves). The bound is that of Peng et al. 2019, arXiv 1910.00177. `among`: `all`
    takes the weights as they are; `group` divides them by their mean over the group, so that a prompt which scores high
    throughout counts no more than others, and what is added to all rewards changes nothing. Without a beta (infinity)
    it is `sft`.

    Raises ValueError for settings out of range.
    """

    beta: float = 1.0
    weight_max: float = 20.0
    among: Among = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("beta", self.beta)
        check_above("weight_max", self.weight_max)
        check_one_of("among", self.among, get_args(Among))

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        plain, denominator = super().coefficients(batch)
        return plain * self._worth(batch)[:, None], denominator

    def _worth(self, batch: LossBatch) -> Tensor:
        """[B] what each sample counts."""
        takes_part = (batch.weight > 0).any(1)
        exponent = batch.scores / self.beta
        if self.among == "group":
            place, count = group_index(batch.group)
            exponent = exponent.masked_fill(~takes_part, -math.inf)
            highest = exponent.new_full((count,), -math.inf).scatter_reduce(0, place, exponent, "amax")[place]
            worth = (exponent - highest).masked_fill(~takes_part, -math.inf).exp()
            size = group_sum(takes_part.to(worth.dtype), batch.group)
            worth = worth * size / group_sum(worth, batch.group).clamp(min=1e-30)
        else:
            worth = exponent.clamp(max=math.log(self.weight_max)).exp()
        return worth.clamp(max=self.weight_max)
