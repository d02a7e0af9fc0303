"""A bonus for right answers where the order of the frames helped to find them (T-GRPO)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.numerics import group_mean, group_sum

from ..base.wrapper import RewardWrapper, check_judges_samples


@dataclass(frozen=True)
class TemporalContrast(RewardWrapper):
    """A bonus: 1 for each right answer in groups where ordered frames help, compared with shuffled frames, else 0.

    Feng et al. 2025, "Video-R1", arXiv 2503.21776, section 3.1: with p the mean of `reward` over a group's answers and
    p~ that over its controls, answers to the same question about shuffled frames (`sampler.controls`, half as many as
    answers in the paper), the bonus is given where p >= `share` * p~, to the answers whose own reward is above
    `threshold`. In the mix its weight is the paper's alpha, 0.3; share 0.8 and threshold 0.1 are those of the code,
    where the paper writes p~ without a factor.

    `reward` is the accuracy, a reward of its own: `{name: exact_answer}`. Groups without controls, those about images
    in a mixture, get 0.
    """

    reward: Reward  # the accuracy, such as {name: exact_answer}
    # how much of the accuracy on shuffled frames must be reached; the code's, as the next one
    share: Annotated[float, Field(ge=0)] = 0.8
    threshold: float = 0.1  # accuracy above which an answer is right

    source: ClassVar[str] = "Feng et al. 2025 (Video-R1), arXiv 2503.21776, section 3.1"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "group"
    needs: ClassVar[frozenset[str]] = frozenset({"controls"})  # beside those of the inner reward

    def __post_init__(self) -> None:
        super().__post_init__()
        check_judges_samples(self.reward)
        self.override(needs=self.needs | self.needs_of_inner())

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32 in {0, 1}; 0 for the controls."""
        is_member = batch.is_member
        accuracy = self.reward.score(batch)
        ordered = group_mean(accuracy, batch.group, is_member)
        shuffled = group_mean(accuracy, batch.group, ~is_member)
        is_compared = group_sum((~is_member).float(), batch.group) > 0
        is_helped = is_compared & (ordered >= self.share * shuffled)
        return (is_helped & (accuracy > self.threshold) & is_member).float()
