"""SPPO: the log-ratio of a sample regresses on how often it wins."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.paths import PathLoss


@dataclass(frozen=True)
class Sppo(PathLoss):
    """(log-ratio to the old weights - eta (P - 1/2))^2 of each sample, P its win rate, which is its reward.

    Wu et al. 2024, "Self-Play Preference Optimization for Language Model Alignment", arXiv 2405.00675, section 4: the
    old weights are the opponent, and 1/2 is the rate at which they win against themselves. P comes from a reward in
    [0, 1] of comparisons, such as `win_rate` or `pairwise_judge`: these need not be transitive. In `gvpo` the
    log-ratios of a group are centred; here each has a target of its own. eta is that of the authors' code, 1 / 0.001,
    for summed log-ratios; where all log-ratios are 0, the gradient is that of REINFORCE on P - 1/2 times 2 eta.

    Raises ValueError for settings out of range.
    """

    # Nats by which the log-ratio of a sample that always wins exceeds that of one that wins half of the time, times 2.
    eta: Annotated[float, Field(gt=0)] = 1000.0

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        error = self.of_samples(compared[0], batch) - self.eta * (batch.scores - 0.5)
        return error.square(), {"log_ratio_error": error.detach().abs()}
