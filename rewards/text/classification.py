"""Is the label the right one, or are the labels the right ones?"""

import unicodedata
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import MAX_CHARACTERS, ParseError, extract

from ..base.answers import TagReward

Kind = Literal["one", "set", "penalised"]
MAX_LABEL = 1000  # characters; composing Unicode can take quadratic time


@dataclass(frozen=True)
class Classification(TagReward):
    """The correctness of the label in the `tag` (None: the whole text) against `target.label`, in [0, 1].

      one  1 where it is the right label, or one of several right ones; else 0
      set  F1 of the set of answered labels, between commas, and the set of right ones: 2 |both| / (|one| + |other|)
      penalised  of the right labels the share that is answered, less `penalty` for each answered label that is wrong,
                 |both| / |right| - penalty |wrong|, at least -1; -1 for no label at all. Listing everything and saying
                 nothing both lose (after STAR-R1, Li et al. 2025, arXiv 2505.15804, which pays objects, attributes and
                 values apart; the numbers are ours)
    Labels are compared in composed Unicode (NFC) and case-folded letters, without white space and underscores, as Liu
    et al. 2025 (Visual-RFT, arXiv 2503.01785) compare those of fine-grained classes: `Boeing_737-200` is `boeing
    737-200`. With `strict`, only white space at the ends and its amount inside do not matter.

    The paper's code also accepts a true label anywhere in the answer, so that a list of all classes is always right,
    and `male` is in `female`; here the answer must be the label. Labels that are answered twice count once. The score
    is the lowest, 0 or -1, where the text does not hold exactly one such tag, or the tag is empty.
    """

    source: ClassVar[str] = "Liu et al. 2025 (Visual-RFT), arXiv 2503.01785"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.label"})
    batch_size: ClassVar[int | None] = None

    kind: Kind = "one"  # one label, or a set of labels between commas, by its F1 or with penalties
    penalty: Annotated[float, Field(ge=0)] = 0.5  # of `penalised`: what each wrong label costs
    strict: bool = False  # whether capitals and underscores count
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "penalised":
            object.__setattr__(self, "range", (-1.0, 1.0))

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no label or list of labels, or one is empty."""
        self._right_labels(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no label or list of labels, or where one is empty.
        """
        assert batch.outputs.texts is not None, "scoring checks needs"
        pairs = zip(batch.outputs.texts, map(self._right_labels, batch.prompts), strict=True)
        return torch.tensor([self._judge(text, right) for text, right in pairs], dtype=torch.float32)

    def _judge(self, text: str, right: set[str]) -> float:
        nothing = self.range[0]
        if len(text) > MAX_CHARACTERS:
            return nothing
        try:
            answer = extract(text, self.tag)
        except ParseError:
            return nothing
        if self.kind == "one":
            return float(self._plain(answer) in right)
        answered = {self._plain(label) for label in answer.split(",")} - {""}
        if self.kind == "penalised":
            share = len(answered & right) / len(right) - self.penalty * len(answered - right)
            return max(nothing, share) if answered else nothing
        return 2 * len(answered & right) / (len(answered) + len(right))

    def _right_labels(self, prompt: Prompt) -> set[str]:
        given = prompt.target["label"]
        labels = [given] if isinstance(given, str) else given
        is_texts = isinstance(labels, list | tuple) and all(isinstance(label, str) for label in labels)
        if not is_texts or not labels or not all(map(self._plain, labels)):
            raise ValueError(
                f"target.label must be a text or a list of texts, of at most {MAX_LABEL} characters, "
                f"got {given!r} for {prompt.text!r}"
            )
        if self.kind != "one" and any("," in label for label in labels):
            raise ValueError(f"target.label of kind {self.kind} may have no commas, got {given!r} for {prompt.text!r}")
        return set(map(self._plain, labels))

    def _plain(self, label: str) -> str:
        """Returns the label as it is compared; empty for one that is longer than MAX_LABEL, which is no label."""
        words = label.split()
        if len(" ".join(words)) > MAX_LABEL:
            return ""
        if self.strict:
            return " ".join(words)
        return unicodedata.normalize("NFC", "".join(words).replace("_", "").casefold())
