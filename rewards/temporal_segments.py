"""How well the spans of time in an answer cover all true ones, and whether the thought came closer step by step."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from mmrl.answers import MAX_SPANS, ParseError, Span, check_tag
from mmrl.contracts import Granularity, RewardBatch
from mmrl.data import Prompt
from mmrl.rewards._spans import answered_spans, matched_iou, read_anchors, true_span, union_iou

Kind = Literal["union", "matched"]


@dataclass(frozen=True)
class TemporalSegments:
    """Overlap of the answered spans with `target.spans` = [[start, end], ...] in seconds, in [0, 1].

      union    IoU of the time that all answered spans cover with that of all true ones (VideoChat-R1, Li et al. 2025,
               arXiv 2504.06958): where one span ends and the next begins at once does not matter
      matched  the largest sum of IoUs over pairs, one with one, / max(number answered, number true), as in
               VisionReasoner (arXiv 2505.12081) for boxes: more spans than there are lower it, however they lie
    No spans for none score 1; spans for none, and none for some, 0. The answer is in `tag` (None: the whole text), as
    JSON or in words (`read_spans`); 0 where it cannot be read or a span does not end after it starts.

    With `anchors` the thought before the answer must hold at least one span in tags of that name, for instance
    `<timestamp>3 to 9</timestamp>`, and each anchor and then the answer should cover the truth no worse than the one
    before: the score is multiplied by the share of these steps that do, 0 without an anchor (TAR-TVG, Guo et al.
    2025, arXiv 2508.07683, which requires each estimate to be better than the last). An anchor that is written again
    right away is one anchor. TAR-TVG adds its terms, so that a good chain pays for a wrong answer, and lets the IoU of
    spans apart go below 0: here the answer's overlap bounds the score, and its end is 0.
    """

    source: ClassVar[str] = "Li et al. 2025 (VideoChat-R1), arXiv 2504.06958; TAR-TVG, arXiv 2508.07683"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.spans"})
    batch_size: ClassVar[int | None] = None

    kind: Kind = "union"
    anchors: str | None = None  # name of their tag; TAR-TVG's is timestamp
    tag: str | None = "answer"

    def __post_init__(self) -> None:
        check_tag(self.tag)
        check_tag(self.anchors)
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if self.anchors is not None and self.tag in (None, self.anchors):
            raise ValueError(f"anchors stand before the tag of the answer, got tag {self.tag!r}")

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a target that is no list of spans, or of more than an answer may have."""
        _true_spans(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for a target that `check` refuses."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        scores = [self._score(text, prompt) for text, prompt in zip(batch.outputs.texts, batch.prompts, strict=True)]
        return torch.tensor(scores, dtype=torch.float32)

    def _score(self, text: str, prompt: Prompt) -> float:
        true = _true_spans(prompt)
        try:
            answered = answered_spans(text, self.tag)
            overlap = self._overlap(answered, true)
            return overlap if self.anchors is None else overlap * self._progress(text, overlap, true)
        except ParseError:
            return 0.0

    def _overlap(self, answered: tuple[Span, ...], true: list[Span]) -> float:
        return (union_iou if self.kind == "union" else matched_iou)(answered, true)

    def _progress(self, text: str, overlap: float, true: list[Span]) -> float:
        """The share of steps, from anchor to anchor to answer, that do not lead away from the truth."""
        assert self.anchors is not None, "asked for only with anchors"
        found = read_anchors(text, self.anchors, text.index(f"<{self.tag}>"))
        values = [*(self._overlap((anchor,), true) for anchor in found), overlap]
        steps = [before <= after for before, after in pairwise(values)]
        return sum(steps) / len(steps) if steps else 0.0


def _true_spans(prompt: Prompt) -> list[Span]:
    """`target.spans` of a prompt, maybe none."""
    given = prompt.target["spans"]
    if not isinstance(given, list | tuple):
        raise ValueError(f"target.spans must be a list of [start, end] in seconds, got {given!r}")
    if len(given) > MAX_SPANS:
        raise ValueError(f"target.spans may hold {MAX_SPANS} spans, as many as an answer, got {len(given)}")
    return [true_span(span, "a span of target.spans") for span in given]
