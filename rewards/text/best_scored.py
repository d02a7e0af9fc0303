"""Did a judge give the best of several answers the highest number?"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, read_numbers

from ..base.answers import TagReward, judge_answers

Best = tuple[float, int]  # the place of the best answer, counted from 0, or the right number of a single one; the count
Number = Annotated[float, Field(gt=-math.inf, lt=math.inf)]


@dataclass(frozen=True)
class BestScored(TagReward):
    """A check of a judge of several answers: 1 where it gives the best one the highest number alone, else -1.

    Liu et al. 2025 (SPCT), arXiv 2504.02495, equation 11:
      1   of several answers, where S_j > S_i for all i other than j, the best answer
      1   of a single answer, where S_1 is the right number
      -1  elsewhere, also for another number of numbers, for one of several that is not on the scale, and for other text
    The `tag` (None: the whole text) holds the numbers in the order of the answers, such as `[7, 3]`. `target.count` is
    how many answers there are, and `target.answer` the place of the best one, counted from 1; of a single answer it is
    the right number.
    """

    scale: tuple[Number, Number] = (1.0, 10.0)  # the lowest and the highest number
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    source: ClassVar[str] = "Liu et al. 2025 (SPCT), arXiv 2504.02495"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer", "target.count"})
    batch_size: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scale[0] < self.scale[1]:
            raise ValueError(f"scale must be [lowest, highest], got {list(self.scale)}")

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target does not name one of the answers, or the number of a single one."""
        _best(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32. Raises ValueError as `check` does."""
        return 2 * judge_answers(batch, self.tag, _best, self._is_right) - 1

    def _is_right(self, answer: str, best: Best) -> float:
        right, count = best
        numbers = read_numbers(answer)
        if len(numbers) == count == 1:
            return float(numbers[0] == right)
        low, high = self.scale
        if len(numbers) != count or not all(low <= number <= high for number in numbers):
            return 0.0
        place = int(right)
        return float(all(numbers[place] > number for other, number in enumerate(numbers) if other != place))


def _best(prompt: Prompt) -> Best:
    """Returns the place of the best answer or the number of a single one, and how many answers there are."""
    answer, count = prompt.target["answer"], prompt.target["count"]
    numbers = _numbers(str(answer))
    is_count = type(count) is int and count >= 1
    if not is_count or len(numbers) != 1 or (count > 1 and numbers[0] not in range(1, count + 1)):
        raise ValueError(
            "target.answer must be the place of the best of target.count answers, or the number of a single one, got "
            f"{answer!r} of {count!r} for {prompt.text!r}"
        )
    return (numbers[0], 1) if count == 1 else (numbers[0] - 1, count)


def _numbers(text: str) -> tuple[float, ...]:
    """Returns the numbers of a text; none for other text."""
    try:
        return read_numbers(text)
    except ParseError:
        return ()
