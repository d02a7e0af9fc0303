"""RWR, reward-weighted regression: supervised fine-tuning with weights that grow with the scores of the samples."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import group_index, group_sum

from .sft import Sft

Among = Literal["all", "group"]


@dataclass(frozen=True)
class Rwr(Sft):
    """The loss of `sft` with a weight of exp(r / beta), at most `weight_max`, for each sample.

    Peters & Schaal 2007, "Reinforcement Learning by Reward-weighted Regression for Operational Space Control", eq. 6;
    for images Flow-RWR of Liu et al. 2025, arXiv 2501.13918, section 4 (the weights of Lee et al. 2023, arXiv
    2302.12192, are the rewards themselves). The bound is that of Peng et al. 2019, arXiv 1910.00177. `among: all`
    takes the weights as they are; `among: group` divides them by their mean over the group, so that a prompt with high
    scores throughout counts no more than others, and a constant added to all rewards changes nothing. With an infinite
    beta this is `sft`.

    Raises ValueError for settings out of range.
    """

    beta: Annotated[float, Field(gt=0)] = 1.0  # in units of reward; the smaller, the more the best samples count
    weight_max: Annotated[float, Field(gt=0)] = 20.0  # the largest weight of a sample
    among: Among = "group"  # weights are divided by their mean in the `group`; `all`: weights stay as they are

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        plain, denominator = super().coefficients(batch)
        return plain * self._weights(batch)[:, None], denominator

    def _weights(self, batch: LossBatch) -> Tensor:
        """Returns the weights [B] of the samples."""
        takes_part = (batch.weight > 0).any(1)
        exponent = batch.scores / self.beta
        if self.among == "group":
            place, count = group_index(batch.group)
            exponent = exponent.masked_fill(~takes_part, -math.inf)
            highest = exponent.new_full((count,), -math.inf).scatter_reduce(0, place, exponent, "amax")[place]
            weights = (exponent - highest).masked_fill(~takes_part, -math.inf).exp()
            size = group_sum(takes_part.to(weights.dtype), batch.group)
            weights = weights * size / group_sum(weights, batch.group).clamp(min=1e-30)
        else:
            weights = exponent.clamp(max=math.log(self.weight_max)).exp()
        return weights.clamp(max=self.weight_max)
