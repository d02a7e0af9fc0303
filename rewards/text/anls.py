"""The normalised Levenshtein similarity of the answer and a right one (document questions)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward, judge_answers
from ..base.references import reference_texts


@dataclass(frozen=True)
class Anls(TagReward):
    """The average normalised Levenshtein similarity, the best over the right answers of `target.answer`:

      s = 1 - d if d < `threshold` else 0,   d = edit distance(answer, right) / length of the longer one

    of the texts in small letters, with one space for each run of white space and none at the ends. Biten et al. 2019,
    "Scene Text Visual Question Answering", arXiv 1905.13648; threshold 0.5, as DocVQA (arXiv 2007.00398) scores. The
    score is 0 where the text does not hold exactly one such tag, for no answer, and for an answer of over 10,000
    letters.
    """

    source: ClassVar[str] = "Biten et al. 2019 (ST-VQA), arXiv 1905.13648"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.answer"})
    batch_size: ClassVar[int | None] = None

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.5  # distance from which the score is 0; the paper's
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no text or list of texts."""
        reference_texts(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no text or list of texts, or that is empty.
        """
        return judge_answers(batch, self.tag, reference_texts, self._judge)

    def _judge(self, answer: str, right: list[str]) -> float:
        nearest = min(Levenshtein.normalized_distance(_plain(one), _plain(answer)) for one in right)
        return 1 - nearest if nearest < self.threshold else 0.0


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
