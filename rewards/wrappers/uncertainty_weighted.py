"""Several judges of the same thing, with less weight where they disagree."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Reward, RewardBatch

from ..base.disagreement import Kind, reduced, reduced_range
from ..base.wrapper import RewardWrapper, common_granularity, only_numbers


@dataclass(frozen=True)
class UncertaintyWeighted(RewardWrapper):
    """The mean m of several rewards, reduced by their disagreement u, the population std over them.

      discount     m e^(-scale u), for rewards of at least 0: Zhang et al. 2025, "Ctrl-U", arXiv 2410.11236, equation 5,
                   weights its loss by e^(-U); there U is the disagreement of one judge about two images (`repeated`)
      weighted_loss  top - (L e^(-scale u) + own_weight u) with the loss L = top - m, top the largest score that the
                   rewards allow: Ctrl-U's loss with its term for U itself, as in the authors' train/ctrlu-depth.py
                   (730f2e6 of grenoble-zhang/Ctrl-U); a gradient passes through both, as there
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
    # For kind `weighted_loss`: how much disagreement counts as a loss of its own.
    own_weight: Annotated[float, Field(ge=0)] = 0.0

    source: ClassVar[str] = "Ctrl-U, arXiv 2410.11236; TextNorm, arXiv 2404.01863; UWO and WCO, arXiv 2310.02743"
    holds_dense: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.rewards) < 2:
            raise ValueError(f"rewards must be at least two, got {len(self.rewards)}")
        self.override(
            range=reduced_range([reward.range for reward in self.rewards], self.kind, self.scale, self.own_weight),
            granularity=common_granularity(self.rewards),
            differentiable=all(reward.differentiable for reward in self.rewards),
            needs=self.needs_of_inner(),
            batch_size=min((r.batch_size for r in self.rewards if r.batch_size is not None), default=None),
        )

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] (dense: [B, K]) float32; raises what the inner rewards raise."""
        first, *others = (reward.score(batch) for reward in self.rewards)
        values = torch.stack([first, *(other.to(first.device) for other in others)])  # [n, B]
        top = max(reward.range[1] for reward in self.rewards)
        scores = reduced(values, self.kind, self.scale, top=top, own_weight=self.own_weight)
        return only_numbers(self.rewards[0], batch, scores)
