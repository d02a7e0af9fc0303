"""What rewards of spans of time share: the true ones, and how well others cover them."""

import math
from collections.abc import Iterable, Sequence

import torch

from mmrl.parsing.answers import MAX_SPANS, ParseError, Span, extract, read_spans

from .boxes import pairs_by_overlap


def true_span(span: object, name: str) -> Span:
    """Returns a span of the target, in seconds; raises ValueError unless it is [start, end] with 0 <= start < end."""
    if not isinstance(span, list | tuple) or len(span) != 2 or not all(map(is_seconds, span)) or span[0] >= span[1]:
        raise ValueError(f"{name} must be [start, end] in seconds, 0 <= start < end, got {span!r}")
    return float(span[0]), float(span[1])


def is_seconds(value: object) -> bool:
    """Returns whether this is a finite number that is not negative, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def answered_spans(text: str, tag: str | None) -> tuple[Span, ...]:
    """Returns the spans in the `tag` of a text (`read_spans`).

    Raises ParseError where one does not end after it starts.
    """
    spans = read_spans(extract(text, tag))
    if not all(start < end for start, end in spans):
        raise ParseError("a span must end after it starts")
    return spans


def read_anchors(text: str, tag: str, end: int) -> tuple[Span, ...]:
    """Returns the one span in each `<tag>...</tag>` before the place `end` of a text, those written again in a row as
    one.

    Raises:
        ParseError: tags that do not close one after the other, one without exactly one span, or more than MAX_SPANS.
    """
    parts = text[:end].split(f"<{tag}>")
    if len(parts) > MAX_SPANS + 1:
        raise ParseError(f"an answer may have {MAX_SPANS} anchors, got {len(parts) - 1}")
    found: list[Span] = []
    for number, part in enumerate(parts):
        content, *after = part.split(f"</{tag}>")
        if len(after) != (1 if number else 0):
            raise ParseError(f"<{tag}> must be closed once, before the next one")
        spans = answered_spans(content, None) if number else ()
        if number and len(spans) != 1:
            raise ParseError(f"<{tag}> needs one span, got {len(spans)}")
        found += [span for span in spans if not found or span != found[-1]]
    return tuple(found)


def iou(a: Span, b: Span) -> float:
    """Returns the intersection over union of two spans."""
    shared = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    return shared / (a[1] - a[0] + b[1] - b[0] - shared)


def giou(a: Span, b: Span) -> float:
    """Returns the IoU less the share of the hull that neither covers, in (-1, 1] (Rezatofighi et al. 2019, arXiv
    1902.09630).
    """
    return iou(a, b) - gap_share([a], [b])


def gap_share(left: Sequence[Span], right: Sequence[Span]) -> float:
    """Returns the time between all that left covers and all that right covers, over their hull; 0 where one covers
    none.
    """
    if not left or not right:
        return 0.0
    starts = [min(start for start, _ in spans) for spans in (left, right)]
    ends = [max(end for _, end in spans) for spans in (left, right)]
    return max(0.0, max(starts) - min(ends)) / (max(ends) - min(starts))


def union_iou(left: Sequence[Span], right: Sequence[Span]) -> float:
    """Returns the IoU of all time that left covers with all that right covers; 1 where neither covers any, 0 where one
    does.
    """
    ours, theirs = merged(left), merged(right)
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in ours for b in theirs)
    covered = sum(end - start for spans in (ours, theirs) for start, end in spans)
    return min(1.0, shared / (covered - shared))  # rounding may leave it an ulp above


def matched_iou(left: Sequence[Span], right: Sequence[Span]) -> float:
    """Returns the largest sum of IoUs over pairs, one with one, / max(n, m); 1 where there are none, 0 where one has
    none.
    """
    if not left or not right:
        return float(len(left) == len(right))
    overlap = torch.tensor([[iou(a, b) for b in right] for a in left], dtype=torch.float64)
    pairs = pairs_by_overlap(overlap)
    return sum(float(overlap[a, b]) for a, b in pairs) / max(len(left), len(right))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Returns the same time as spans that do not meet, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found
