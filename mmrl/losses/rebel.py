"""REBEL: regression of reward differences, for tokens and for denoising steps."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.paths import PairLoss


@dataclass(frozen=True)
class Rebel(PairLoss):
    """The term (m / eta - d)^2 of each pair, m the difference of its log-ratios to the old weights, d that of rewards.

    Gao et al. 2024, "REBEL: Reinforcement Learning via Regressing Relative Rewards", arXiv 2404.16767,
    algorithm 1; eta of ZhaolinGao/REBEL. Pairs of equal rewards count under `pairs: all`: they pull their log-ratios
    together. At ratio 1 its gradient is that of REINFORCE with leave-one-out advantages and summed log-probs, times
    4 / eta.

    Raises ValueError for settings out of range.
    """

    eta: Annotated[float, Field(gt=0)] = 1.0  # differences of log-ratios are divided by it, to match those of rewards

    has_ties: ClassVar[bool] = True

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        better, worse = self.pair_rows(batch)
        paths = self.of_samples(compared[0], batch) / self.eta
        error = paths[better] - paths[worse] - (batch.scores[better] - batch.scores[worse])
        metrics = {"reward_error": self.of_groups(error.detach().abs(), better, batch)}
        return self.of_groups(error.square(), better, batch), metrics
