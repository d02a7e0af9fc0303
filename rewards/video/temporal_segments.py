"""The overlap of the answered spans of time with all true ones, and progress of the thought towards them."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import MAX_SPANS, ParseError, Span, check_tag

from ..base.answers import TagReward
from ..base.spans import answered_spans, gap_share, matched_iou, read_anchors, true_span, union_iou

Kind = Literal["union", "matched"]
Form = Literal["added", "guarded"]


@dataclass(frozen=True)
class TemporalSegments(TagReward):
    """The overlap of the answered spans with `target.spans` = [[start, end], ...] in seconds, in [0, 1].

      union    IoU of the time that all answered spans cover with that of all true ones (VideoChat-R1, Li et al. 2025,
               arXiv 2504.06958): where one span ends and the next begins at once does not matter
      matched  the largest sum of IoUs over pairs, one to one, / max(number answered, number true), as in
               VisionReasoner (arXiv 2505.12081) for boxes: too many spans lower it, however they lie
    No spans for none score 1; spans for none, and none for some, 0. The answer is in `tag` (None: the whole text), as
    JSON or in words (`read_spans`); the score is 0 where it cannot be read or a span does not end after it starts.

    With `anchors` the thought before the answer should hold spans in tags of that name, for instance `<timestamp>3 to
    9</timestamp>`, and each anchor and then the answer should cover the truth no worse than the anchor before (TAR-TVG,
    Guo et al. 2025, arXiv 2508.07683). An anchor that is repeated right away is one anchor.
      added    the mean of three terms, so that weight 3 is their sum, in [-2/3, 1]: the answer's overlap; the mean of
               the anchors' overlaps, later ones counting more (1, 2, ... m); the share of the steps, from anchor to
               anchor to answer, that come no less close. As in the paper the overlap of time that does not meet is
               minus the gap over the hull of both. A chain pays for a wrong answer too. Anchors that cannot be read
               are none, and their two terms 0; an answer that cannot be read scores 0, more than one far off. The
               paper has no code; the weights of its terms could not be checked
      guarded  the answer's overlap times the share of these steps, in [0, 1]: the answer bounds the score. 0 without
               an anchor
    """

    source: ClassVar[str] = "Li et al. 2025 (VideoChat-R1), arXiv 2504.06958; TAR-TVG, arXiv 2508.07683"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.spans"})
    batch_size: ClassVar[int | None] = None

    kind: Kind = "union"  # which overlap
    anchors: str | None = None  # name of the tag of spans in the thought; TAR-TVG's is timestamp; null: none are read
    form: Form = "added"  # how anchors count
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tag(self.anchors)
        if self.anchors is not None and self.tag in (None, self.anchors):
            raise ValueError(f"anchors stand before the tag of the answer, got tag {self.tag!r}")
        if self.anchors is not None and self.form == "added":
            object.__setattr__(self, "range", (-2 / 3, 1.0))  # of this one, not of the class

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a target that is no list of spans, or of more than an answer may have."""
        _true_spans(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that `check` refuses."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        scores = [self._score(text, prompt) for text, prompt in zip(batch.outputs.texts, batch.prompts, strict=True)]
        return torch.tensor(scores, dtype=torch.float32)

    def _score(self, text: str, prompt: Prompt) -> float:
        true = _true_spans(prompt)
        try:
            answered = answered_spans(text, self.tag)
        except ParseError:
            return 0.0
        if self.anchors is None:
            return self._overlap(answered, true)
        try:
            anchors = read_anchors(text, self.anchors, text.index(f"<{self.tag}>"))
        except ParseError:
            anchors = ()
        overlap = self._overlap if self.form == "guarded" else self._signed_overlap
        *values, last = [overlap(spans, true) for spans in (*((anchor,) for anchor in anchors), answered)]
        steps = [before <= after for before, after in pairwise([*values, last])]
        progress = sum(steps) / len(steps) if steps else 0.0
        if self.form == "guarded":
            return last * progress
        numbers = range(1, len(values) + 1)
        anchored = sum(n * value for n, value in zip(numbers, values, strict=True)) / sum(numbers) if values else 0.0
        return (last + anchored + progress) / 3

    def _overlap(self, answered: tuple[Span, ...], true: list[Span]) -> float:
        return (union_iou if self.kind == "union" else matched_iou)(answered, true)

    def _signed_overlap(self, answered: tuple[Span, ...], true: list[Span]) -> float:
        """Returns the overlap; for spans that do not meet, minus the share of their hull that lies between them."""
        return self._overlap(answered, true) - gap_share(answered, true)


def _true_spans(prompt: Prompt) -> list[Span]:
    """Returns `target.spans` of a prompt, which may be empty."""
    given = prompt.target["spans"]
    if not isinstance(given, list | tuple):
        raise ValueError(f"target.spans must be a list of [start, end] in seconds, got {given!r}")
    if len(given) > MAX_SPANS:
        raise ValueError(f"target.spans may hold {MAX_SPANS} spans, as many as an answer, got {len(given)}")
    return [true_span(span, "a span of target.spans") for span in given]
