"""Several judges of the same thing, with less weight where they disagree."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch

from ..base.wrapper import RewardWrapper, common_granularity, only_numbers

Kind = Literal["discount", "lower_bound", "variance", "worst", "disagreement"]


@dataclass(frozen=True)
class UncertaintyWeighted(RewardWrapper):
    """The mean m of several rewards, reduced by their disagreement u, the population std over them.

      discount     m e^(-scale u), for rewards of at least 0: Zhang et al. 2025, "Ctrl-U", arXiv 2410.11236, equation 5,
                   weights its loss by e^(-U); there U is the disagreement of one judge about two images
      lower_bound  m - scale u: Kim et al. 2024, "Confidence-aware reward optimization" (TextNorm), arXiv 2404.01863,
                   whose ensembles of text-normalised rewards (`text_norm`) are used in this way
      variance     m - scale u^2, u^2 the variance (1 / n): the uncertainty-weighted optimization (UWO) of Coste et al.
                   2023, "Reward Model Ensembles Help Mitigate Overoptimization", arXiv 2310.02743
      worst        the least of the rewards: the worst-case optimization (WCO) of the same paper; `scale` counts nothing
      disagreement -u alone: a number to watch, with weight 0, beside a reward of the same judges

    Where all agree the score is their mean, and 0 for `disagreement`. The rewards must be of one scale: put `text_norm`
    or `clip_range` around those that are not. Of dense rewards the numbers of each decision are compared.

    Raises ValueError for fewer than two rewards, or rewards that judge different things.
    """

    rewards: tuple[Reward, ...]  # the rewards, at least two
    kind: Kind = "lower_bound"  # how disagreement counts
    scale: Annotated[float, Field(ge=0)] = 1.0  # how much disagreement counts

    source: ClassVar[str] = "Ctrl-U, arXiv 2410.11236; TextNorm, arXiv 2404.01863; UWO and WCO, arXiv 2310.02743"
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.rewards) < 2:
            raise ValueError(f"rewards must be at least two, got {len(self.rewards)}")
        granularity = common_granularity(self.rewards)
        low = min(reward.range[0] for reward in self.rewards)
        high = max(reward.range[1] for reward in self.rewards)
        if self.kind == "discount" and low < 0:
            raise ValueError(f"kind 'discount' is for rewards of at least 0, got one that goes down to {low:g}")
        self.override(
            range=self._range(low, high),
            granularity=granularity,
            differentiable=all(reward.differentiable for reward in self.rewards),
            needs=self.needs_of_inner(),
            batch_size=min((r.batch_size for r in self.rewards if r.batch_size is not None), default=None),
        )

    def _range(self, low: float, high: float) -> tuple[float, float]:
        """Returns the ends of the score for rewards from `low` to `high`."""
        if self.kind == "worst":
            return low, min(reward.range[1] for reward in self.rewards)
        if self.kind == "disagreement":  # a std is at most half of what there is between the ends
            return (low - high) / 2, 0.0
        return self._lowest(low, high), high

    def _lowest(self, low: float, high: float) -> float:
        """Returns the lower end for rewards from `low` to `high`: all forms are least with each reward at an end."""
        if self.scale == 0:
            return low
        if not math.isfinite(high - low):
            return 0.0 if self.kind == "discount" else -math.inf
        ends = []
        for number in range(len(self.rewards) + 1):
            share = number / len(self.rewards)  # of the rewards that are at the high end
            mean, spread = low + (high - low) * share, (high - low) * math.sqrt(share * (1 - share))
            if self.kind == "discount":
                ends.append(mean * math.exp(-self.scale * spread))
            else:
                ends.append(mean - self.scale * (spread**2 if self.kind == "variance" else spread))
        return min(ends)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32; raises what the inner rewards raise."""
        return only_numbers(self.rewards[0], batch, self._combined(batch))

    def _combined(self, batch: RewardBatch) -> Tensor:
        """Returns the scores by the formula of the kind."""
        first, *others = (reward.score(batch) for reward in self.rewards)
        values = torch.stack([first, *(other.to(first.device) for other in others)])  # [n, B]
        if self.kind == "worst":
            return values.amin(0)
        mean = values.mean(0)
        variance = (values - mean).square().mean(0)
        if self.kind == "variance":
            return mean - self.scale * variance
        agrees = variance == 0  # where a square root has no gradient
        spread = torch.where(agrees, 0.0, torch.where(agrees, 1.0, variance).sqrt())
        if self.kind == "disagreement":
            return -spread
        return mean * (-self.scale * spread).exp() if self.kind == "discount" else mean - self.scale * spread
