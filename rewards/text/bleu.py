"""The BLEU of an answer against references: how many of its runs of words stand in one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward, judge_answers
from ..base.references import reference_texts

Smoothing = Literal["exp", "floor", "add_k", "none"]


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
        try:
            self._references(prompt)
        finally:
            forget_tokens()

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that `check` refuses."""
        try:
            return judge_answers(batch, self.tag, self._references, self._score)
        finally:
            forget_tokens()

    @cached_property
    def _bleu(self) -> Any:
        smoothing = {"smooth_method": self.smoothing.replace("_", "-"), "lowercase": self.ignore_case}
        return sacrebleu(max_ngram_order=self.max_order, tokenize="13a", **smoothing)

    def _references(self, prompt: Prompt) -> list[str]:
        references = reference_texts(prompt)
        read = [text.lower() if self.ignore_case else text for text in references]  # as sacrebleu reads them
        if not all(self._bleu.tokenizer(text.rstrip()) for text in read):
            raise ValueError(f"target.answer must have words, got {prompt.target['answer']!r} for {prompt.text!r}")
        return references

    def _score(self, answer: str, references: list[str]) -> float:
        return sentence_bleu(self._bleu, answer, references)


def sacrebleu(**settings: Any) -> Any:
    """Returns sacrebleu's BLEU of sentences: of orders that the answer is too short for none counts."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True, **settings)


def sentence_bleu(bleu: Any, answer: str, references: Sequence[str]) -> float:
    """Returns the BLEU of an answer, in [0, 1]."""
    return min(1.0, float(bleu.sentence_score(answer, references).score) / 100)


def forget_tokens() -> None:
    """Empties sacrebleu's memory of tokenised texts, which keeps 65,536 of them for as long as the process lives."""
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

    for tokenizer in (Tokenizer13a, TokenizerRegexp):
        tokenizer.__call__.cache_clear()
