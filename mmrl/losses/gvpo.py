"""GVPO: the variance of the difference between rewards and scaled log-ratios within a group."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import group_sum

from .base.paths import PathLoss, centred, present


@dataclass(frozen=True)
class Gvpo(PathLoss):
    """Half the unbiased variance of beta * log-ratio - reward over the members of a group.

    Zhang et al. 2025, "GVPO: Group Variance Policy Optimization for Large Language Model Post-Training", arXiv
    2504.19599: the squared error between the centred implicit and the centred actual rewards. The division by 2 (n - 1)
    and beta are those of the authors' code. The minimum, 0, is the optimal policy under a KL to the anchor, whichever
    policy made the samples. The loss is a quarter of REBEL on all pairs with eta = 1 / beta. Rewards are not divided by
    a std.

    Raises ValueError for settings out of range.
    """

    beta: Annotated[float, Field(gt=0)] = 0.1  # weight of the KL to the anchor, in units of reward

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        error = centred(self.beta * self.of_samples(compared[0], batch) - batch.scores, batch)
        others = (group_sum(present(batch).to(error.dtype), batch.group) - 1).clamp(min=1)
        return group_sum(error.square(), batch.group) / (2 * others), {"reward_error": error.detach().abs()}
