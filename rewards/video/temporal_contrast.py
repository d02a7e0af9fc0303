"""A bonus for right answers where the order of the frames helped to find them (T-GRPO)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.numerics import group_mean, group_sum

from ..base.wrapper import RewardWrapper, check_judges_samples


@dataclass(frozen=True)
class TemporalContrast(RewardWrapper):
    """1 for each answer that is right, in groups that are as good on ordered frames as the shuffled ones allow, else 0.

    Feng et al. 2025, "Video-R1", arXiv 2503.21776, section 3.1: with p the mean of `reward` over a group's answers and
    p~ that over its controls, answers to the same question about shuffled frames (`sampler.controls`, half as many as
    answers in the paper), the bonus is given where p >= `share` * p~, to the answers whose own reward is above
    `threshold`. In the mix its weight is the paper's alpha, 0.3; share 0.8 and threshold 0.1 are those of the code,
    where the paper writes p~ without a factor.

    `reward` is the accuracy, a reward of its own: `{name: exact_answer}`. Groups without controls, those about images
    in a mixture, get 0.
    """

    reward: Reward
    share: float = 0.8
    threshold: float = 0.1

    source: ClassVar[str] = "Feng et al. 2025 (Video-R1), arXiv 2503.21776, section 3.1"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "group"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"controls"})  # beside those of the reward that it holds
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        if self.share < 0:
            raise ValueError(f"share must be at least 0, got {self.share}")
        check_judges_samples(self.reward)
        self.override(needs=self.needs | self.needs_of_inner())

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32 in {0, 1}; 0 for the controls."""
        is_member = batch.is_member
        accuracy = self.reward.score(batch)
        ordered = group_mean(accuracy, batch.group, is_member)
        shuffled = group_mean(accuracy, batch.group, ~is_member)
        is_compared = group_sum((~is_member).float(), batch.group) > 0
        is_helped = is_compared & (ordered >= self.share * shuffled)
        return (is_helped & (accuracy > self.threshold) & is_member).float()
