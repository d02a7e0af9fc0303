"""Is the answer the right one, letter by letter?"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, extract, read_boxed

from ..base.answers import TagReward
from ..base.references import composed


@dataclass(frozen=True)
class ExactAnswer(TagReward):
    r"""A match: 1 where the text in the `tag` (None: the whole text) equals `target.answer`, or one of several, else 0.

    Both are compared without white space at their ends, with one space for each run of white space inside, in
    case-folded letters unless `ignore_case` is off, and with an accent as part of its letter (Unicode's NFC, which
    nobody sees). Nothing else is made equal ("3" is not "3.0"). The score is 0 where the text does not hold exactly one
    such tag. The answer rewards of R1-V and its kin.

    With `boxed` the answer is the content of the one `\boxed{...}` of that text, thoughts before `</think>` apart.
    """

    source: ClassVar[str] = "R1-V 2025, github.com/Deep-Agent/R1-V"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer"})
    batch_size: ClassVar[int | None] = None

    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text
    ignore_case: bool = True  # whether capitals are small letters
    # whether the answer stands in the one `\boxed{...}` of that text; EasyR1's answers to geometry3k, with `tag` null
    boxed: bool = False

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no text or list of texts, or empty."""
        self._right_answers(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no text or list of texts, or that is empty.
        """
        assert batch.outputs.texts is not None, "scoring checks needs"
        pairs = zip(batch.outputs.texts, map(self._right_answers, batch.prompts), strict=True)
        return torch.tensor([float(self._is_right(text, right)) for text, right in pairs], dtype=torch.float32)

    def _is_right(self, text: str, right: set[str]) -> bool:
        try:
            answer = extract(text, self.tag)
            return self._normalised(read_boxed(answer) if self.boxed else answer) in right
        except ParseError:
            return False

    def _right_answers(self, prompt: Prompt) -> set[str]:
        given = prompt.target["answer"]
        answers = [given] if isinstance(given, str) else given
        is_texts = isinstance(answers, list | tuple) and all(isinstance(answer, str) for answer in answers)
        if not is_texts or not answers or not all(map(str.strip, answers)):
            raise ValueError(f"target.answer must be a text or a list of texts, got {given!r} for {prompt.text!r}")
        try:
            return set(map(self._normalised, answers))
        except ParseError as error:
            raise ValueError(f"target.answer of {prompt.text!r} cannot be compared with: {error}") from None

    def _normalised(self, text: str) -> str:
        text = " ".join(composed(text).split())
        return text.casefold() if self.ignore_case else text
