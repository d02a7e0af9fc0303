"""Spans of time: those of targets and answers, and how well they overlap."""

import math
from collections.abc import Iterable, Sequence

import torch

from mmrl.parsing.answers import MAX_SPANS, ParseError, Span, extract, read_spans

from .boxes import pairs_by_overlap


def true_span(span: object, name: str) -> Span:
    """Reads a span of the target, in seconds; raises ValueError unless it is [start, end] with 0 <= start < end."""
    if not isinstance(span, list | tuple) or len(span) != 2 or not all(map(is_seconds, span)) or span[0] >= span[1]:
        raise ValueError(f"{name} must be [start, end] in seconds, 0 <= start < end, got {span!r}")
    return float(span[0]), float(span[1])


def is_seconds(value: object) -> bool:
    """Returns whether a value is a finite number of at least 0; truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def answered_spans(text: str, tag: str | None) -> tuple[Span, ...]:
    """Reads the spans in the `tag` of a text (`read_spans`).

    Raises ParseError where one does not end after it starts.
    """
    spans = read_spans(extract(text, tag))
    if not all(start < end for start, end in spans):
        raise ParseError("a span must end after it starts")
    return spans


def read_anchors(text: str, tag: str, end: int) -> tuple[Span, ...]:
    """Reads the one span in each `<tag>...</tag>` before the place `end` of a text; repeated ones in a row count once.

    Raises:
        ParseError: tags that do not close one after the other, one without exactly one span, or more than MAX_SPANS.
    """
    parts = text[:end].split(f"<{tag}>")
    if len(parts) > MAX_SPANS + 1:
        raise ParseError(f"an answer may have {MAX_SPANS} anchors, got {len(parts) - 1}")
    anchors: list[Span] = []
    for number, part in enumerate(parts):
        content, *after = part.split(f"</{tag}>")
        if len(after) != (1 if number else 0):
            raise ParseError(f"<{tag}> must be closed once, before the next one")
        spans = answered_spans(content, None) if number else ()
        if number and len(spans) != 1:
            raise ParseError(f"<{tag}> needs one span, got {len(spans)}")
        anchors += [span for span in spans if not anchors or span != anchors[-1]]
    return tuple(anchors)


def iou(a: Span, b: Span) -> float:
    """Returns the intersection over union of two spans."""
    shared = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    return shared / (a[1] - a[0] + b[1] - b[0] - shared)


def giou(a: Span, b: Span) -> float:
    """Returns the IoU less the share of the hull that neither covers, in (-1, 1].

    Rezatofighi et al. 2019, arXiv 1902.09630.
    """
    return iou(a, b) - gap_share([a], [b])


def gap_share(left: Sequence[Span], right: Sequence[Span]) -> float:
    """Returns the time between all spans of left and all of right, over their hull; 0 where one has none."""
    if not left or not right:
        return 0.0
    starts = [min(start for start, _ in spans) for spans in (left, right)]
    ends = [max(end for _, end in spans) for spans in (left, right)]
    return max(0.0, max(starts) - min(ends)) / (max(ends) - min(starts))


def union_iou(left: Sequence[Span], right: Sequence[Span]) -> float:
    """Returns the IoU of the time that left covers with that of right; 1 if both are empty, 0 if one is."""
    left_spans, right_spans = merged(left), merged(right)
    if not left_spans or not right_spans:
        return float(left_spans == right_spans)
    shared = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in left_spans for b in right_spans)
    covered = sum(end - start for spans in (left_spans, right_spans) for start, end in spans)
    return min(1.0, shared / (covered - shared))  # rounding may leave it an ulp above


def matched_iou(left: Sequence[Span], right: Sequence[Span]) -> float:
    """Returns the largest sum of IoUs over pairs, one to one, / max(n, m); 1 if both are empty, 0 if one is."""
    if not left or not right:
        return float(len(left) == len(right))
    overlap = torch.tensor([[iou(a, b) for b in right] for a in left], dtype=torch.float64)
    pairs = pairs_by_overlap(overlap)
    return sum(float(overlap[a, b]) for a, b in pairs) / max(len(left), len(right))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Returns spans that cover the same time and do not meet, in order."""
    disjoint: list[Span] = []
    for start, end in sorted(spans):
        if disjoint and start <= disjoint[-1][1]:
            disjoint[-1] = disjoint[-1][0], max(disjoint[-1][1], end)
        else:
            disjoint.append((start, end))
    return disjoint
