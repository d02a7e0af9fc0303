"""The BLEU of an answer against references: how many of its runs of words stand in one of them."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward, judge_answers
from ..base.references import ngrams, reference_texts

Smoothing = Literal["exp", "floor", "add_k", "none"]
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_SIGN = re.compile(r"([!-&(-+:-@\[-`{-~/])")  # all of ASCII but ' , - . which depend on what stands beside them
_MARK_AFTER_OTHER = re.compile(r"([^0-9])([.,])")
_MARK_BEFORE_OTHER = re.compile(r"([.,])([^0-9])")
_DASH_AFTER_DIGIT = re.compile(r"([0-9])-")


@dataclass(frozen=True)
class Bleu(TagReward):
    """Sentence BLEU as sacrebleu computes it, over 100: BP * (p_1 * ... * p_N)^(1 / N), in [0, 1].

    p_n is the share of the answer's runs of n tokens that stand in a reference, each as often as in the reference that
    has it most often. BP = exp(1 - r / c) where the answer, c tokens long, is shorter than the reference of the nearest
    length, r (of two the shorter one), else 1. N is `max_order`, or the answer's length where that is less (but for
    `add_k`, which counts the others as 1 / 1). A p_n of 0 is smoothed (Chen and Cherry 2014): `exp` 1 / (2^k t) for the
    k-th of them and t runs, `floor` 0.1 / t, `add_k` adds 1 to both counts of all n > 1, `none` leaves the score 0. An
    answer that shares no token scores 0.

    Tokens are sacrebleu's 13a (mteval-v13a), with capitals unless `ignore_case`. The score is 0 as well for an answer
    without exactly one `tag` (None: the whole text), or longer than 10,000 letters; sacrebleu has no such limit.
    """

    source: ClassVar[str] = "Papineni et al. 2002; Post 2018 (sacrebleu), arXiv 1804.08771; BLEUBERI, arXiv 2505.11080"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer"})
    batch_size: ClassVar[int | None] = None

    smoothing: Smoothing = "exp"  # what stands for a precision of 0; sacrebleu's default
    max_order: Annotated[int, Field(ge=1, le=9)] = 4  # the longest runs of tokens; 1 is GRIT's BLEU-1
    ignore_case: bool = False  # whether capitals are small letters
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a target that is no text or list of texts, or that is empty."""
        self._references(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that `check` refuses."""
        return judge_answers(batch, self.tag, self._references, self._score)

    def _references(self, prompt: Prompt) -> list[list[str]]:
        references = [self._tokens(text) for text in reference_texts(prompt)]
        if not all(references):
            raise ValueError(f"target.answer must have words, got {prompt.target['answer']!r} for {prompt.text!r}")
        return references

    def _tokens(self, text: str) -> list[str]:
        return tokens_13a(text.lower() if self.ignore_case else text)

    def _score(self, answer: str, references: list[list[str]]) -> float:
        return sentence_bleu(self._tokens(answer), references, self.smoothing, self.max_order)


def sentence_bleu(
    answered: list[str], references: list[list[str]], smoothing: Smoothing = "exp", max_order: int = 4
) -> float:
    """Returns the BLEU (formula at `Bleu`) of a list of tokens; 0 where it is empty."""
    orders = range(1, min(max_order, len(answered)) + 1)
    precisions, misses, has_match = [], 0, False
    for n in orders:
        counts = ngrams(answered, n)
        most = ngrams(references[0], n)
        for reference in references[1:]:
            most |= ngrams(reference, n)
        matches, total = float((counts & most).total()), float(counts.total())
        has_match = has_match or matches > 0
        misses += not matches
        added = 1.0 if smoothing == "add_k" and n > 1 else 0.0
        least = {"exp": 0.5**misses, "floor": 0.1}.get(smoothing, 0.0)
        precisions.append((matches + added or least) / (total + added))
    if not has_match or not all(precisions):
        return 0.0
    # sacrebleu counts 1 / 1 for orders that the answer is too short for where k is added, and none elsewhere
    count = max_order if smoothing == "add_k" else len(precisions)
    nearest = min((abs(len(reference) - len(answered)), len(reference)) for reference in references)[1]
    brevity = min(1.0, math.exp(1 - nearest / len(answered)))
    return brevity * math.exp(sum(map(math.log, precisions)) / count)


def tokens_13a(text: str) -> list[str]:
    """Returns the tokens of mteval-v13a: signs stand alone; so do points and commas, but for those between digits."""
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, sign in _ENTITIES:
        text = text.replace(entity, sign)
    text = _SIGN.sub(r" \1 ", f" {text} ")
    text = _MARK_AFTER_OTHER.sub(r"\1 \2 ", text)
    text = _MARK_BEFORE_OTHER.sub(r" \1 \2", text)
    return _DASH_AFTER_DIGIT.sub(r"\1 - ", text).split()
