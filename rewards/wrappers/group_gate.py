"""A reward that counts only in groups of a wanted mean accuracy (ConciseR)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.numerics import group_mean, group_sum
from mmrl.core.reward_batches import select

from ..base.wrapper import RewardWrapper, check_judges_samples, score_inner

_ROUNDING = 1e-6  # of a mean that is equal to `low` or `high` but for float32, such as that of 0.2 and 0.4


@dataclass(frozen=True)
class GroupGate(RewardWrapper):
    """A reward r gated by its group: r where `low` <= mean accuracy of the group <= `high`, else `otherwise`.

    With the defaults it counts only where all answers of a group are right: Song and Zheng 2025, "Walk Before You Run!"
    (ConciseR), arXiv 2505.21178, whose second stage rewards short answers there alone. With `low: 0` and a `high` below
    1 it counts where a question is hard, such as a bonus for long thoughts, which help in hard visual tasks and harm in
    simple ones (On the Suitability of Reinforcement Fine-Tuning to Visual Tasks, arXiv 2504.05682; a gate by difficulty
    follows from what its abstract reports, and is not part of its experiments).

    The inner reward sees the groups whose gate is open, and no others: a slow judge costs nothing elsewhere. Samples
    drawn for comparison only are in no mean, and get the score that their group's gate allows. Samples whose accuracy
    is NaN are in no mean and score NaN. A group without any sample that counts has a shut gate. In a group of one the
    mean is that of its one sample.

    Raises ValueError for `low` above `high`, an accuracy that does not judge samples, and an inner reward of turns or
    episodes.
    """

    reward: Reward  # the reward that counts where the gate is open; it judges samples or groups
    accuracy: Reward  # the reward of answers, whose mean opens the gate
    low: float = 1.0  # the lowest mean accuracy of a group whose gate is open; 1: all answers are right
    high: float = 1.0  # the highest one
    otherwise: float = 0.0  # the score in groups whose gate is shut

    source: ClassVar[str] = "Song and Zheng 2025 (ConciseR), arXiv 2505.21178"
    granularity: ClassVar[Granularity] = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise ValueError(f"low must be at most high, got {self.low} and {self.high}")
        check_judges_samples(self.accuracy, "the accuracy")
        if self.reward.granularity != "group":
            check_judges_samples(self.reward)
        low, high = self.reward.range
        ends = (min(low, self.otherwise), max(high, self.otherwise))
        self.override(range=ends, needs=self.needs_of_inner())

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner rewards raise."""
        accuracy = score_inner(self.accuracy, batch).cpu()
        group, is_judged = batch.group.cpu(), ~accuracy.isnan()
        is_counted = is_judged & batch.is_member.cpu()
        mean = group_mean(accuracy, group, is_counted)
        is_open = (mean >= self.low - _ROUNDING) & (mean <= self.high + _ROUNDING)
        is_open &= group_sum(is_counted.float(), group) > 0
        scores, rows = torch.full_like(accuracy, self.otherwise), is_open.nonzero()[:, 0]
        if len(rows):
            scores[rows] = score_inner(self.reward, select(batch, rows)).cpu()
        return torch.where(is_judged, scores, torch.nan)
