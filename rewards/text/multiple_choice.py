"""Did the answer choose the right option?"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward, judge_answers
from ..base.choices import read_choices, right_choices


@dataclass(frozen=True)
class MultipleChoice(TagReward):
    r"""A choice: 1 where the answer in the `tag` (None: all) names the letters of `target.answer` alone, else 0.

    Several spellings are one: "B", "(b)", "B.", "The answer is B", and with `target.options` also the option's text,
    alone or behind its letter ("B. cat", where another text than the option's own is wrong). Without options the text
    behind "B." must not name another letter. Where several letters are right (`target.answer`: "A, C", or a list) all
    of them must be named: "A and C", "(A), (C)", "AC".

    With `is_soft` an answer that names only right letters scores their share, |named| / |right|, one with a wrong
    letter 0 (TW-GRPO, Dang et al. 2025, arXiv 2505.24718, section 3.3). Letters count once: "A, A" is "A".

    The score is 0 where the text does not hold exactly one such tag, where no option is named, or a letter that is no
    option. With `boxed` the answer stands in the one `\boxed{...}` of that text. R1-V and Video-R1 compare the letter
    as it is written; VLM-R1 takes the first capital of the answer ("Because it is B" is B there, 0 here).
    """

    source: ClassVar[str] = (
        "Dang et al. 2025 (TW-GRPO), arXiv 2505.24718; Feng et al. 2025 (Video-R1), arXiv 2503.21776"
    )
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer"})  # target.options where there are some
    batch_size: ClassVar[int | None] = None

    is_soft: bool = False  # whether a part of the right letters scores its share
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text
    boxed: bool = False  # whether the answer stands in the one `\boxed{...}` of that text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target names no option."""
        right_choices(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that names no option, or options that are none.
        """
        return judge_answers(batch, self.tag, right_choices, self._judge, boxed=self.boxed)

    def _judge(self, answer: str, target: tuple[frozenset[str], tuple[str, ...]]) -> float:
        right, options = target
        named = read_choices(answer, options)
        if self.is_soft:
            return len(named) / len(right) if named <= right else 0.0
        return float(named == right)
