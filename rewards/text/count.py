"""Is the number of things right, or nearly?"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, extract, read_numbers

from ..base.answers import TagReward, is_number

Kind = Literal["exact", "fuzzy", "relative"]


@dataclass(frozen=True)
class Count(TagReward):
    """The correctness of the one whole number p in the `tag` against g, `target.count`, with e = |p - g| / g:

      exact     1 where p = g, else 0
      fuzzy     (1.5 - e) / 1.5 where e < 0.5, else 0 (Wang et al. 2025, CrowdVLM-R1, arXiv 2504.03724; the paper's is
                1.5 times that). It jumps: an error just below a half earns 2/3
      relative  max(0, 1 - e), which does not jump
    In [0, 1]. Where g is 0 only p = 0 is right, and scores 1 (CrowdVLM-R1's code divides by 0 there, and scores 0 for
    all).

    With `tag: null` the whole text is the number. The score is 0 for anything but one whole number that is at least 0,
    in ASCII digits: words beside it, several numbers, signs of thousands, exponents; `3.0` is 3.
    """

    source: ClassVar[str] = "Wang et al. 2025 (CrowdVLM-R1), arXiv 2504.03724"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.count"})
    batch_size: ClassVar[int | None] = None

    kind: Kind = "exact"  # how far a wrong number counts
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no count."""
        _true_count(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that is no whole number of at least 0."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        pairs = zip(batch.outputs.texts, map(_true_count, batch.prompts), strict=True)
        return torch.tensor([self._judge(text, true) for text, true in pairs], dtype=torch.float32)

    def _judge(self, text: str, true: int) -> float:
        try:
            numbers = read_numbers(extract(text, self.tag))
        except ParseError:
            return 0.0
        if len(numbers) != 1 or numbers[0] < 0 or not numbers[0].is_integer():
            return 0.0
        if self.kind == "exact" or true == 0:
            return float(numbers[0] == true)
        error = abs(numbers[0] - true) / true
        if self.kind == "relative":
            return max(0.0, 1 - error)
        return (1.5 - error) / 1.5 if error < 0.5 else 0.0


def _true_count(prompt: Prompt) -> int:
    count = prompt.target["count"]
    if not is_number(count) or count < 0 or count != int(count):
        raise ValueError(f"target.count must be a whole number of at least 0, got {count!r} for {prompt.text!r}")
    return int(count)
