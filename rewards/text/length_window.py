"""A bonus for right answers of a wanted length (Video-R1)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, Reward, RewardBatch
from mmrl.core.numerics import group_sum

from ..base.wrapper import RewardWrapper, check_judges_samples


@dataclass(frozen=True)
class LengthWindow(RewardWrapper):
    """A bonus: 1 for each right answer of `shortest` to `longest` tokens, ends included, else 0.

    Feng et al. 2025, "Video-R1", arXiv 2503.21776, section 3.2: right answers of 320 to 512 tokens get a bonus of 0.2,
    which is the weight of this reward in the mix, so that a model thinks long enough, and not for ever. An answer is
    right where `reward`, the accuracy ({name: exact_answer}), gives it more than `threshold`. As in the paper's code
    the bonus is given only in groups with at least `min_right` right answers. The end token counts as a token.

    Controls are not counted and get 0. A wrong answer gains nothing by any length.
    """

    reward: Reward  # the accuracy, such as {name: exact_answer}
    shortest: Annotated[int, Field(ge=0)] = 320  # fewest tokens of the window; the paper's, as the next one
    longest: int = 512  # most tokens of the window
    threshold: float = 0.1  # accuracy above which an answer is right
    min_right: Annotated[int, Field(ge=1)] = 2  # right answers that a group must have

    source: ClassVar[str] = "Feng et al. 2025 (Video-R1), arXiv 2503.21776, section 3.2"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "group"
    needs: ClassVar[frozenset[str]] = frozenset({"num_tokens"})  # beside those of the inner reward

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shortest > self.longest:
            raise ValueError(f"shortest must be at most longest, got {self.shortest} and {self.longest}")
        check_judges_samples(self.reward)
        self.override(needs=self.needs | self.needs_of_inner())

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32 in {0, 1}; 0 for the controls."""
        assert batch.outputs.num_tokens is not None, "scoring checks needs"
        is_right = (self.reward.score(batch) > self.threshold) & batch.is_member
        is_enough = group_sum(is_right.float(), batch.group) >= self.min_right
        length = batch.outputs.num_tokens.to(is_right.device)
        return (is_right & is_enough & (length >= self.shortest) & (length <= self.longest)).float()
