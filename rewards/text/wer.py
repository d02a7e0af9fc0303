"""1 - WER: how few words or letters of an answer must be changed to make it the reference."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from rapidfuzz.distance import Levenshtein
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward, judge_answers
from ..base.references import reference_texts

Unit = Literal["word", "letter"]
Units = str | list[str]  # the letters of a text, or its words


@dataclass(frozen=True)
class Wer(TagReward):
    """One minus the error rate: max(0, 1 - errors / m), in [0, 1].

    Errors are insertions, deletions and substitutions against `target.answer`; m is the reference's length in words
    (`unit: word`, WER) or in letters and spaces (`letter`, CER). An error rate has no upper end, since an answer may
    hold more wrong words than the reference has words; a rate above 1 counts as 1, as in Video-R1's reward for reading
    text (Feng et al. 2025, arXiv 2503.21776). Of several references the best counts.

    Words are separated by white space; a run of it counts as one space. Punctuation counts, and so do capitals unless
    `ignore_case`. The score is 0 for an answer without exactly one `tag` (None: the whole text), or longer than 10,000
    letters.
    """

    source: ClassVar[str] = "Feng et al. 2025 (Video-R1), arXiv 2503.21776; github.com/jitsi/jiwer"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer"})
    batch_size: ClassVar[int | None] = None

    unit: Unit = "word"  # what errors are counted in
    ignore_case: bool = False  # whether capitals are small letters
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a target that is no text or list of texts, or that is empty."""
        self._references(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that `check` refuses."""
        return judge_answers(batch, self.tag, self._references, self._score)

    def _references(self, prompt: Prompt) -> list[Units]:
        return [self._units(text) for text in reference_texts(prompt)]

    def _units(self, text: str) -> Units:
        parts = (text.casefold() if self.ignore_case else text).split()
        return parts if self.unit == "word" else " ".join(parts)

    def _score(self, answer: str, references: list[Units]) -> float:
        answered = self._units(answer)
        return max(max(0.0, 1 - Levenshtein.distance(one, answered) / len(one)) for one in references)
