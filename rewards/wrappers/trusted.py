"""A judge of thoughts, trusted as far as it prefers right answers (Trust-GRPO)."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.numerics import group_mean, group_sum

from ..base.wrapper import RewardWrapper, check_judges_samples, score_inner


@dataclass(frozen=True)
class Trusted(RewardWrapper):
    """A judge of thoughts with a trust: gamma e^(-iteration / decay) r.

    gamma = min(1, exp(mean of r over right answers - mean over wrong ones)). Fan et al. 2025, "SophiaVL-R1", arXiv
    2505.17018, equations 1 to 4: r judges the thoughts, `accuracy` the answers; an answer is right where its accuracy
    is at least `threshold`. gamma is 1 where right answers have the better thoughts, and where a group has none of one
    kind, so that there is nothing to compare: the code gives all thoughts 0 there, and always those of answers below
    0.2 (`gated` with that threshold). Both means are those of the group. In the mix its weight is the paper's alpha,
    0.3, and the code's decay is 500. Samples drawn for comparison only are in no mean; neither are those of which one
    of both scores is NaN, and they score NaN.

    Raises ValueError where an inner reward does not judge samples.
    """

    reward: Reward  # the judge of thoughts
    accuracy: Reward  # the reward of answers
    threshold: float = 0.5  # accuracy from which an answer is right
    decay: Annotated[float, Field(gt=0)] | None = None  # iterations in which the weight falls to 1 / e; null: it stays

    source: ClassVar[str] = "Fan et al. 2025 (SophiaVL-R1), arXiv 2505.17018"
    granularity: ClassVar[Granularity] = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        for reward in (self.reward, self.accuracy):
            check_judges_samples(reward, "the inner rewards")
        low, high = self.reward.range
        self.override(range=(min(low, 0.0), max(high, 0.0)), needs=self.needs_of_inner())

    @property
    def declaration(self) -> RewardDeclaration:
        """Returns that of the inner rewards; with a `decay` a group scores otherwise in another iteration."""
        inner, fades = super().declaration, self.decay is not None
        return replace(
            inner,
            follows_iteration=inner.follows_iteration or fades,
            is_changing=inner.is_changing or fades,
        )

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises what the inner rewards raise."""
        thoughts, accuracy = score_inner(self.reward, batch).cpu(), score_inner(self.accuracy, batch).cpu()
        is_right, is_judged = accuracy >= self.threshold, ~(thoughts + accuracy).isnan()
        is_counted = is_judged if batch.is_control is None else is_judged & ~batch.is_control
        right, wrong = is_right & is_counted, ~is_right & is_counted
        gap = group_mean(thoughts, batch.group, right) - group_mean(thoughts, batch.group, wrong)
        is_compared = (group_sum(right.float(), batch.group) > 0) & (group_sum(wrong.float(), batch.group) > 0)
        trust = torch.where(is_compared, gap.clamp(max=0).exp(), 1.0)
        fading = 1.0 if self.decay is None else math.exp(-batch.iteration / self.decay)
        return torch.where(is_judged, fading * trust * thoughts, torch.nan)
