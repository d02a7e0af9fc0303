"""The overlap of the answered span of time with the true one."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, Span, extract, read_span

from ..base.answers import TagReward
from ..base.spans import giou, iou, is_seconds, true_span

Kind = Literal["iou", "giou", "timestamp_aware"]


@dataclass(frozen=True)
class TemporalIou(TagReward):
    """The overlap of the answered span with `target.span` = [start, end], both in seconds, in [0, 1].

      iou              intersection / union (VideoChat-R1; Time-R1 divides by the hull, which is the union where the two
                       spans meet, and gives 0 as well where they do not)
      giou             (1 + IoU - (hull - union) / hull) / 2, which tells spans apart that do not meet (Rezatofighi et
                       al. 2019, arXiv 1902.09630, in one dimension)
      timestamp_aware  IoU * max(0, 1 - |s - s*| / T) * max(0, 1 - |e - e*| / T) with T = `target.duration` in seconds
                       (Time-R1, Wang et al. 2025, arXiv 2503.13377; without the max its code goes below 0)

    The span is the last one in the `tag` (None: in the text). The score is 0 where there is no span, or where it does
    not end after it starts. With a `threshold` the score is 1 where the overlap is at least that, else 0 (recall at a
    tIoU).
    """

    source: ClassVar[str] = "Li et al. 2025 (VideoChat-R1), arXiv 2504.06958"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.span"})
    batch_size: ClassVar[int | None] = None

    kind: Kind = "iou"  # which overlap
    # overlap from which the score is 1, else 0; 0.5 is the usual one; null: the overlap itself
    threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "timestamp_aware":
            object.__setattr__(self, "needs", self.needs | {"target.duration"})  # of this one, not of the class

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError for a target that is no span, or lacks the duration that the kind needs."""
        self._target(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that `check` refuses."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        scores = [self._score(text, prompt) for text, prompt in zip(batch.outputs.texts, batch.prompts, strict=True)]
        return torch.tensor(scores, dtype=torch.float32)

    def _score(self, text: str, prompt: Prompt) -> float:
        true, duration = self._target(prompt)
        try:
            answered = read_span(extract(text, self.tag))
        except ParseError:
            return 0.0
        if not answered[0] < answered[1]:
            return 0.0
        value = (1 + giou(answered, true)) / 2 if self.kind == "giou" else iou(answered, true)
        value *= math.prod(max(0.0, 1 - abs(a - b) / duration) for a, b in zip(answered, true, strict=True))
        return value if self.threshold is None else float(value >= self.threshold)

    def _target(self, prompt: Prompt) -> tuple[Span, float]:
        """Returns the true span, and the duration that errors are divided by: infinite where the kind has none."""
        span, duration = true_span(prompt.target["span"], "target.span"), prompt.target.get("duration")
        if self.kind != "timestamp_aware":
            return span, math.inf
        if not is_seconds(duration) or not duration:
            raise ValueError(f"kind timestamp_aware needs target.duration in seconds, above 0, got {duration!r}")
        return span, float(duration)
