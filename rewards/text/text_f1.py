"""SQuAD's F1: how many words the answer shares with a right one."""

import re
from collections import Counter
from dataclasses import dataclass
from string import punctuation
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward, judge_answers
from ..base.references import reference_texts

_NO_PUNCTUATION = str.maketrans("", "", punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True)
class TextF1(TagReward):
    """The token F1 of SQuAD: the best of 2 p r / (p + r) over the right answers of `target.answer`, with

      p = shared words / words of the answer,   r = shared words / words of the right one,

    a word that occurs n times in one and m times in the other being shared min(n, m) times. Words are the parts between
    white space of a text in small letters, without ASCII punctuation and without the words a, an and the. Rajpurkar et
    al. 2016, "SQuAD", arXiv 1606.05250.

    The score is 0 where the text does not hold exactly one such tag, and for an answer without words. A target without
    words ("the") is refused, where SQuAD's script gives 0 to all answers, its own among them.
    """

    source: ClassVar[str] = "Rajpurkar et al. 2016 (SQuAD), arXiv 1606.05250"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer"})
    batch_size: ClassVar[int | None] = None

    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no text or list of texts, or one without words."""
        right_words(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no text or list of texts, or one without words.
        """
        return judge_answers(batch, self.tag, right_words, best_f1)


def right_words(prompt: Prompt) -> list[Counter[str]]:
    """Returns the words of each right answer, counted; raises ValueError where one has none."""
    counts = [squad_words(text) for text in reference_texts(prompt)]
    if not all(counts):
        raise ValueError(
            f"target.answer must have words beside articles, got {prompt.target['answer']!r} for {prompt.text!r}"
        )
    return counts


def best_f1(answer: str, right: list[Counter[str]]) -> float:
    """Returns the best F1 over the right answers: 2 * shared / (words of the answer + words of the right one)."""
    own = squad_words(answer)
    return max(2 * (own & one).total() / (own.total() + one.total()) for one in right)


def squad_words(text: str) -> Counter[str]:
    """Returns the words of a text as SQuAD's script compares them, and how often each occurs."""
    return Counter(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())
