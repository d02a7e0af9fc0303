"""A reward of an auxiliary step, whose sign says whether the step helps in this group (GCPO)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.numerics import group_mean, group_sum

from ..base.wrapper import RewardWrapper, check_judges_samples, score_inner

_ROUNDING = 1e-6  # of means that are equal but for float32, such as those of 0.6, 0.8 and of 0.7


@dataclass(frozen=True)
class Conditional(RewardWrapper):
    """An auxiliary reward r with the sign of its use: s r, where s compares the accuracy with and without the step.

    Wang et al. 2025 (GeometryZero), arXiv 2506.07160, group contrastive masking, equations 3 and 4. A member takes the
    step, such as an auxiliary line, where r is at least `threshold`. Over the members of a group
      s = 1   where mean accuracy with the step - mean accuracy without it > `margin`
      s = -1  where it is below -`margin`
      s = 0   else, and where all members take the step or none does, so that there is nothing to compare
    The paper's own text was not at hand: this is what its abstract and public reviews say of the two equations, and
    its number for `margin`, epsilon, is not known here. Samples drawn for comparison only are in no mean;
    neither are those of which one of both scores is NaN, and they score NaN.

    Raises ValueError where an inner reward does not judge samples.
    """

    reward: Reward  # the auxiliary reward, high where a member takes the step
    accuracy: Reward  # the reward of answers
    threshold: float = 0.5  # auxiliary reward from which a member takes the step
    margin: Annotated[float, Field(ge=0)] = 0.0  # difference of mean accuracies up to which the step is neither

    source: ClassVar[str] = "Wang et al. 2025 (GeometryZero), arXiv 2506.07160"
    granularity: ClassVar[Granularity] = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        for reward in (self.reward, self.accuracy):
            check_judges_samples(reward, "the inner rewards")
        largest = max(map(abs, self.reward.range))
        self.override(range=(-largest, largest), needs=self.needs_of_inner())

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner rewards raise."""
        auxiliary, accuracy = score_inner(self.reward, batch).cpu(), score_inner(self.accuracy, batch).cpu()
        is_judged = ~(auxiliary + accuracy).isnan()
        is_counted = is_judged if batch.is_control is None else is_judged & ~batch.is_control
        takes_step = auxiliary >= self.threshold
        using, other = takes_step & is_counted, ~takes_step & is_counted
        gap = group_mean(accuracy, batch.group, using) - group_mean(accuracy, batch.group, other)  # [B]
        is_compared = (group_sum(using.float(), batch.group) > 0) & (group_sum(other.float(), batch.group) > 0)
        sign = torch.where(is_compared & (gap.abs() > self.margin + _ROUNDING), gap.sign(), 0.0)
        return torch.where(is_judged, sign * auxiliary, torch.nan)
