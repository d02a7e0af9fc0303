"""VQA accuracy: how many people gave the same answer."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError

from ..base.answers import TagReward, judge_answers
from ..base.references import answer_text

_NUMBERS = {
    word: str(number)
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    )
} | {"none": "0"}
_ARTICLES = frozenset({"a", "an", "the"})
_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_DIGIT_COMMA = re.compile(r"[0-9],[0-9]")
_PERIOD = re.compile(r"\.(?![0-9])")

# One apostrophe of each may be left out. Those of "I" and words that are others without it (we'll, she's) are not
# meant.
_CONTRACTIONS = (
    "ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't "
    "haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't "
    "mightn't've must've mustn't needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've "
    "shouldn't shouldn't've somebody'd somebody'd've somebody'll somebody's someone'd someone'd've "
    "someone'll someone's something'd something'd've something'll that's there'd there'd've there're "
    "there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're "
    "what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're "
    "why's won't would've wouldn't wouldn't've y'all y'all'd've y'all'll you'd you'd've you'll you're "
    "you've"
)
_WITH_APOSTROPHES = {
    word[:place] + word[place + 1 :]: word
    for word in _CONTRACTIONS.split()
    for place, letter in enumerate(word)
    if letter == "'"
}

ENOUGH = 3  # people with whose answer one counts as fully right


@dataclass(frozen=True)
class VqaSoft(TagReward):
    """The VQA accuracy: the mean of min(1, n / 3) over subsets that leave out one of the people of `target.answers`.

    n people of a subset gave the same answer. Antol et al. 2015, "VQA", arXiv 1505.00468, and the evaluation code of
    VQA v2 (github.com/GT-Vision-Lab/VQA): of ten people, 0, 1, 2, 3, 4 and more equal answers are worth 0, 0.3, 0.6,
    0.9 and 1. Both sides are compared without capitals, punctuation and articles, number words up to ten as digits,
    contractions with their apostrophe (`vqa_plain`).

    The score is 0 where the text does not hold exactly one such tag, and for an answer of which nothing is left. At
    least four people must have answered, since of fewer not even all are enough for 1, and one of the answers must keep
    a word. The official script compares the ten answers as they are where all ten agree, so that "two" is wrong when
    all wrote "two" and the answer itself has become "2"; here it is right.
    """

    source: ClassVar[str] = "Antol et al. 2015 (VQA), arXiv 1505.00468; github.com/GT-Vision-Lab/VQA"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answers"})
    batch_size: ClassVar[int | None] = None

    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is not the answers of at least four people, or nothing is left of them."""
        counted_answers(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is not the answers of at least four people.
        """
        return judge_answers(batch, self.tag, counted_answers, leave_one_out)


def counted_answers(prompt: Prompt) -> Counter[str]:
    """Returns how many people of `target.answers` gave each answer, in plain form.

    Raises ValueError where fewer than 4 did, or no answer keeps a word: then no answer could be right.
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
    """Returns the score of an answer: the mean of min(1, n / 3) over all subsets that leave out one person.

    A subset without one of the n who agree has n - 1 who do; a subset without another person has n.
    """
    plain = vqa_plain(answer)
    agree, everyone = people[plain] if plain else 0, people.total()
    without_one = agree * min(1.0, (agree - 1) / ENOUGH)
    without_another = (everyone - agree) * min(1.0, agree / ENOUGH)
    return (without_one + without_another) / everyone


def vqa_plain(text: str) -> str:
    """Returns a text as the official evaluation of VQA v2 compares it.

    Punctuation becomes a space, or nothing where the text has a space beside such a mark, or a comma between digits;
    periods go where no digit follows. Then small letters, number words up to ten as digits, no articles, contractions
    with their apostrophe. (The official pattern for periods is meant to look at the digit before a period too, but does
    not, and stops after 32; here it does not stop.)
    """
    spaced = text.replace("\n", " ").replace("\t", " ").strip()
    plain, has_comma = spaced, _DIGIT_COMMA.search(spaced) is not None
    for mark in _PUNCTUATION:
        is_dropped = has_comma or f"{mark} " in spaced or f" {mark}" in spaced
        plain = plain.replace(mark, "" if is_dropped else " ")
    words = (_NUMBERS.get(word, word) for word in _PERIOD.sub("", plain).lower().split())
    return " ".join(_WITH_APOSTROPHES.get(word, word) for word in words if word not in _ARTICLES)
