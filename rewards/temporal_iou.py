"""How well the span of time in an answer covers the true one."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from mmrl.answers import ParseError, check_tag, extract, read_span
from mmrl.contracts import Granularity, RewardBatch
from mmrl.data import Prompt

Kind = Literal["iou", "giou", "timestamp_aware"]
Span = tuple[float, float]


@dataclass(frozen=True)
class TemporalIou:
    """Overlap of the answered span with `target.span` = [start, end], both in seconds, in [0, 1].

      iou              intersection / union (VideoChat-R1; Time-R1 divides by the hull, which is the union where the two
                       spans meet, and gives 0 as well where they do not)
      giou             (1 + IoU - (hull - union) / hull) / 2, which tells spans apart that do not meet (Rezatofighi et
                       al. 2019, arXiv 1902.09630, in one dimension)
      timestamp_aware  IoU * max(0, 1 - |s - s*| / T) * max(0, 1 - |e - e*| / T) with T = `target.duration` in seconds
                       (Time-R1, Wang et al. 2025, arXiv 2503.13377; without the max its code goes below 0)

    The span is the last one in the `tag` (None: in the text). 0 where there is none, or where it does not end after it
    starts. With a `threshold` the score is 1 where that number is at least it, else 0 (recall at a tIoU).
    """

    source: ClassVar[str] = "Li et al. 2025 (VideoChat-R1), arXiv 2504.06958"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.span"})
    batch_size: ClassVar[int | None] = None

    kind: Kind = "iou"
    threshold: float | None = None  # in (0, 1]: 0.5 is the usual one
    tag: str | None = "answer"

    def __post_init__(self) -> None:
        check_tag(self.tag)
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise ValueError(f"threshold must be in (0, 1], got {self.threshold}")

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for a target that is no span, or lacks the duration that is asked for."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        scores = [self._score(text, prompt) for text, prompt in zip(batch.outputs.texts, batch.prompts, strict=True)]
        return torch.tensor(scores, dtype=torch.float32)

    def _score(self, text: str, prompt: Prompt) -> float:
        true, duration = _target(prompt), _duration(prompt) if self.kind == "timestamp_aware" else math.inf
        try:
            start, end = read_span(extract(text, self.tag))
        except ParseError:
            return 0.0
        if not start < end:
            return 0.0
        value = _overlap((start, end), true, self.kind)
        if self.kind == "timestamp_aware":
            value *= math.prod(max(0.0, 1 - abs(a - b) / duration) for a, b in zip((start, end), true, strict=True))
        return value if self.threshold is None else float(value >= self.threshold)


def _overlap(a: Span, b: Span, kind: Kind) -> float:
    shared = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    union, hull = (a[1] - a[0]) + (b[1] - b[0]) - shared, max(a[1], b[1]) - min(a[0], b[0])
    return (1 + shared / union - (hull - union) / hull) / 2 if kind == "giou" else shared / union


def _target(prompt: Prompt) -> Span:
    span = prompt.target["span"]
    if not isinstance(span, list | tuple) or len(span) != 2 or not all(map(_is_seconds, span)) or span[0] >= span[1]:
        raise ValueError(f"target.span must be [start, end] in seconds, 0 <= start < end, got {span!r}")
    return float(span[0]), float(span[1])


def _duration(prompt: Prompt) -> float:
    duration = prompt.target.get("duration")
    if not _is_seconds(duration) or not duration:
        raise ValueError(f"kind timestamp_aware needs target.duration in seconds, above 0, got {duration!r}")
    return float(duration)


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
