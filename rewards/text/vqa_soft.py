"""How many people gave the same answer (VQA accuracy)."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError

from ..base.answers import TagReward, judge_short
from ..base.references import answer_text
from ..base.vqa_words import vqa_plain

ENOUGH = 3  # people with whose answer one counts as fully right


@dataclass(frozen=True)
class VqaSoft(TagReward):
    """Mean of min(1, n / 3) over the subsets of all but one of the people in `target.answers`, n of whom said the same.

    Antol et al. 2015, "VQA", arXiv 1505.00468, and the evaluation code of VQA v2 (github.com/GT-Vision-Lab/VQA): of ten
    people, 0, 1, 2, 3, 4 and more equal answers are worth 0, 0.3, 0.6, 0.9 and 1. Both sides are compared without
    capitals, punctuation and articles, number words up to ten as digits, contractions with their apostrophe
    (`_vqa_words.vqa_plain`).

    0 where the text does not hold exactly one such tag, and for an answer of which nothing is left. At least four
    people must have answered: of fewer, not even all are enough for 1; and one of them something of which a word is
    left. The official script compares the ten answers as they are where all ten agree, so that "two" is wrong when all
    wrote "two" and it itself has become "2"; here it is right.
    """

    source: ClassVar[str] = "Antol et al. 2015 (VQA), arXiv 1505.00468; github.com/GT-Vision-Lab/VQA"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answers"})
    batch_size: ClassVar[int | None] = None

    tag: str | None = "answer"

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is not the answers of at least four people, or nothing is left of them."""
        counted_answers(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for a target that is not the answers of at least four people."""
        return judge_short(batch, self.tag, False, counted_answers, leave_one_out)


def counted_answers(prompt: Prompt) -> Counter[str]:
    """How many people of `target.answers` gave each answer, in plain form.

    Raises ValueError where fewer than 4 did, or nobody gave one of which something is left: no answer could be right.
    """
    given = prompt.target["answers"]
    is_texts = isinstance(given, list | tuple) and all(isinstance(text, str) for text in given)
    if not is_texts or len(given) <= ENOUGH:
        raise ValueError(f"target.answers must be the texts of at least 4 people, got {given!r} for {prompt.text!r}")
    try:
        people = Counter(vqa_plain(answer_text(text, None)) for text in given)
    except ParseError as error:
        raise ValueError(f"target.answers of {prompt.text!r} cannot be compared with: {error}") from None
    if not any(people):
        raise ValueError(f"target.answers must have words beside articles, got {given!r} for {prompt.text!r}")
    return people


def leave_one_out(answer: str, people: Counter[str]) -> float:
    """Each of the n who agree leaves n - 1 others that do, each of the rest leaves n."""
    plain = vqa_plain(answer)
    agree, everyone = people[plain] if plain else 0, people.total()
    without_one = agree * min(1.0, (agree - 1) / ENOUGH)
    without_another = (everyone - agree) * min(1.0, agree / ENOUGH)
    return (without_one + without_another) / everyone
