"""The win rate of a sample in its group, by the scores of another reward."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.declarations import RewardDeclaration

from ..base.win_rates import win_rates
from ..base.wrapper import RewardWrapper, check_judges_samples, score_inner


@dataclass(frozen=True)
class WinRate(RewardWrapper):
    """The win rate in the group: the mean over the other members j of P(i is preferred to j), in [0, 1].

    Its mean in a group is 1/2. Wang et al. 2025, "Pref-GRPO", arXiv 2508.20751: a win rate keeps the spread of a group
    the same however close its scores are, where normalised scores make much of little. `pairwise_judge` shows a model
    each pair; here the pairs are those of a reward r, such as one that was trained on people's choices:
      temperature null   P = 1 where r_i - r_j > margin, 0 where r_j - r_i > margin, else 1/2
      a temperature      P = sigmoid((r_i - r_j) / temperature), Bradley and Terry 1952; 1 is PickScore's own at its
                         published scale (arXiv 2305.01569, section 4)
    A sample whose score is no finite number scores NaN, and no other is compared with it; where the inner reward
    raises, the whole group could not be judged. Controls score 1/2, as does a sample alone, and no sample is compared
    with controls. As the mean is the same whatever the policy does, an evaluation needs other rewards.

    Raises ValueError where the inner reward does not judge samples, and for a temperature together with a margin.
    """

    reward: Reward  # the reward whose scores are compared
    # of the sigmoid of a difference; null: wins alone
    temperature: Annotated[float, Field(gt=0, lt=math.inf)] | None = None
    # difference, in units of the inner reward, up to which two samples tie
    margin: Annotated[float, Field(ge=0, lt=math.inf)] = 0.0

    source: ClassVar[str] = "Wang et al. 2025 (Pref-GRPO), arXiv 2508.20751"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judges_samples(self.reward)
        if self.temperature is not None and self.margin > 0:
            raise ValueError("a temperature has no ties: give margin or temperature, not both")
        self.override(needs=self.needs_of_inner())

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner reward; win rates are relative, their mean in a group is 1/2."""
        return replace(super().declaration, is_relative=True)

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner reward raises."""
        scores = score_inner(self.reward, batch).double().cpu()
        rates = torch.where(scores.isfinite(), 0.5, torch.nan)
        for rows in batch.members():
            judged = rows[scores[rows].isfinite()]
            rates[judged] = win_rates(self._wins(scores[judged])).float()
        return rates

    def _wins(self, scores: Tensor) -> Tensor:
        """Returns [n, n] in [0, 1]: how far each sample is preferred to each."""
        ahead = scores[:, None] - scores[None, :]
        if self.temperature is not None:
            return (ahead / self.temperature).sigmoid()
        return (ahead > self.margin).double()  # a tie is no win in both orders, whose mean is 1/2
