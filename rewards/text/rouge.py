"""ROUGE: how many words, pairs of words or words in order an answer shares with a reference."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from rapidfuzz.distance import LCSseq
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward, judge_answers
from ..base.references import ngrams, reference_words, words

# rouge-score is what tests compare with and not what counts here: the table that it fills for rougeL takes 3 seconds
# for two texts of 2,500 words, and importing it imports nltk.
Kind = Literal["rouge1", "rouge2", "rougeL", "mean"]


@dataclass(frozen=True)
class Rouge(TagReward):
    """ROUGE: F1 = 2 o / (n + m), in [0, 1], of an answer and `target.answer` with n and m units, o of them shared.

      rouge1  units are words          rouge2  units are pairs of words that follow each other
      rougeL  units are words, o is the length of their longest common subsequence (sentence-level ROUGE-L)
      mean    the mean of the three (Video-R1's reward of free-form answers, arXiv 2503.21776)
    A unit is shared as often as both have it, so repeating gains nothing. Of several references the best counts.

    Lin 2004; words as in rouge-score without stemming (Video-R1 stems: "cats" is "cat" there, and not here), but of all
    scripts: rouge-score drops letters other than a to z, so that answers in Chinese score 0. An answer without words,
    without exactly one `tag` (None: the whole text), or longer than 10,000 letters scores 0. A reference of one word
    has no pairs: rouge2 refuses it, and `mean` is the mean of the two others.
    """

    source: ClassVar[str] = "Lin 2004 (ROUGE), aclanthology.org/W04-1013; github.com/google-research/rouge_score"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer"})
    batch_size: ClassVar[int | None] = None

    kind: Kind = "rougeL"  # which units are counted
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a target that is no text or texts with words, or is too short for pairs of words."""
        self._references(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that `check` refuses."""
        return judge_answers(batch, self.tag, self._references, self._score)

    def _score(self, answer: str, references: list[list[str]]) -> float:
        answered = words(answer)
        return max(self._compare(answered, reference) for reference in references)

    def _compare(self, answered: list[str], reference: list[str]) -> float:
        if self.kind != "mean":
            return overlap(answered, reference, self.kind)
        kinds: tuple[Kind, ...] = ("rouge1", "rouge2", "rougeL") if len(reference) > 1 else ("rouge1", "rougeL")
        return sum(overlap(answered, reference, kind) for kind in kinds) / len(kinds)

    def _references(self, prompt: Prompt) -> list[list[str]]:
        references = reference_words(prompt)
        if self.kind == "rouge2" and min(map(len, references)) < 2:
            raise ValueError(f"rouge2 needs references of two words, got {prompt.target['answer']!r}")
        return references


def overlap(answered: list[str], reference: list[str], kind: Kind) -> float:
    """Returns the F1 of one kind for the words of an answer and of a reference; 0 where one has no unit."""
    n = 2 if kind == "rouge2" else 1
    units = max(0, len(answered) - n + 1) + max(0, len(reference) - n + 1)
    if kind == "rougeL":
        shared = LCSseq.similarity(answered, reference)
    else:
        shared = (ngrams(answered, n) & ngrams(reference, n)).total()
    return 2 * shared / units if shared else 0.0
