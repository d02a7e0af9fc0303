"""A penalty for repeated n-grams."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import regex
import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.parsing.answers import MAX_CHARACTERS

Unit = Literal["word", "letter"]

# Letters and marks that nothing shows of, but for white space: two blanks are none of Unicode's own kinds.
_INVISIBLE = regex.compile(r"[[\p{Default_Ignorable_Code_Point}\p{Cc}\p{Cf}\u2800\uFFFC]--[\s\x1c-\x1f]]", regex.V1)


@dataclass(frozen=True)
class Repetition(Checked):
    """A penalty -(1 - different n-grams / all n-grams) of the text: 0 without repetition, towards -1 with nothing else.

    Yeo et al. 2025, "Demystifying Long Chain-of-Thought", arXiv 2502.03373, appendix C.2, as in open-r1: n-grams of 3
    words, separated by white space, in small letters. `letter` takes letters instead of words, white space left out,
    for writing without spaces (open-r1 cuts Chinese into words). The score is 0 for a text without n-grams, such as an
    empty one.

    Characters that cannot be seen (Unicode's default ignorable code points, such as a zero-width space or a variation
    selector, other formats and controls, the blank letters U+2800 and U+FFFC) are left out, so that they make no word
    different. Of a text over a million characters only the beginning counts.
    """

    source: ClassVar[str] = "Yeo et al. 2025, arXiv 2502.03373, appendix C.2; github.com/huggingface/open-r1"
    range: ClassVar[tuple[float, float]] = (-1.0, 0.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts"})
    batch_size: ClassVar[int | None] = None

    size: Annotated[int, Field(ge=1, le=100)] = 3  # words or letters of an n-gram
    unit: Unit = "word"  # what n-grams are made of

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        return torch.tensor([0.0 - self._repeated(text) for text in batch.outputs.texts], dtype=torch.float32)

    def _repeated(self, text: str) -> float:
        """Returns the share of n-grams that stand in the text before."""
        words = _INVISIBLE.sub("", text[:MAX_CHARACTERS]).lower().split()
        tokens = words if self.unit == "word" else "".join(words)
        total = len(tokens) - self.size + 1
        if total < 1:
            return 0.0
        # Numbers instead of words: a hash of a tuple of long words would read them again for each n-gram.
        numbers: dict[str, int] = {}
        row = [numbers.setdefault(token, len(numbers)) for token in tokens]
        return 1 - len(set(zip(*(row[start:] for start in range(self.size)), strict=False))) / total
