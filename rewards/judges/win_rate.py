"""How often a sample beats the others of its group, by what another reward says."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.declarations import RewardDeclaration

from ..base.win_rates import win_rates
from ..base.wrapper import RewardWrapper, check_judges_samples, score_inner


@dataclass(frozen=True)
class WinRate(RewardWrapper):
    """The mean over the other members j of the group of P(i is preferred to j), in [0, 1]; its mean in a group is 1/2.

    Wang et al. 2025, "Pref-GRPO", arXiv 2508.20751: a win rate keeps the spread of a group the same however close its
    scores are, where normalised scores make much of little. `pairwise_judge` asks a model about each pair; here the
    pairs are those of a reward r, such as one that was trained on people's choices:
      temperature null   P = 1 where r_i - r_j > margin, 0 where r_j - r_i > margin, else 1/2
      a temperature      P = sigmoid((r_i - r_j) / temperature), Bradley and Terry 1952; 1 is PickScore's own at its
                         published scale (arXiv 2305.01569, section 4)
    A sample whose score is no finite number scores NaN, and nobody is compared with it; where the reward held raises,
    the whole group could not be judged. Controls score 1/2, as does a sample alone, and nobody is compared with
    controls. As its mean is the same whatever the policy does, an evaluation needs other rewards.

    Raises ValueError where the reward held does not judge samples, for a temperature that is not above 0, a margin
    below 0, or both.
    """

    reward: Reward
    temperature: float | None = None
    margin: float = 0.0  # in units of the reward held

    source: ClassVar[str] = "Wang et al. 2025 (Pref-GRPO), arXiv 2508.20751"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "group"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()  # beside those of the reward held
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_judges_samples(self.reward)
        if self.temperature is not None and not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature must be above 0, or null for wins alone, got {self.temperature}")
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise ValueError(f"margin must be at least 0, got {self.margin}")
        if self.temperature is not None and self.margin > 0:
            raise ValueError("a temperature has no ties: give margin or temperature, not both")
        self.override(needs=self.needs_of_inner())

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner reward; win rates are relative, their mean in a group is 1/2."""
        return replace(super().declaration, is_relative=True)

    @torch.no_grad()
    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises what the reward held raises."""
        scores = score_inner(self.reward, batch).double().cpu()
        rates = torch.where(scores.isfinite(), 0.5, torch.nan)
        for rows in batch.members():
            judged = rows[scores[rows].isfinite()]
            rates[judged] = win_rates(self._wins(scores[judged])).float()
        return rates

    def _wins(self, scores: Tensor) -> Tensor:
        """[n, n] how far each is preferred to each."""
        ahead = scores[:, None] - scores[None, :]
        if self.temperature is not None:
            return (ahead / self.temperature).sigmoid()
        return (ahead > self.margin).double()  # a tie is no win in both orders, whose mean is 1/2
