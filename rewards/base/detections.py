"""Lists of detections as models write them: boxes with confidences and labels."""

from dataclasses import dataclass

from mmrl.parsing.answers import ParseError, extract, read_literal, shown
from mmrl.parsing.coordinates import Box, Canvas

from .answers import is_number
from .references import composed

MAX_DETECTIONS = 300  # of an answer, or as many as there are true boxes where these are more
_PLACES = ("Position", "bbox_2d")
_CONFIDENCES = ("Confidence", "confidence")
_LABELS = ("Label", "label")


@dataclass(frozen=True)
class DetectedBox:
    """A box of an answer; corners as written, in pixels of the original image."""

    box: Box
    confidence: float = 1.0  # in [0, 1]
    label: str | None = None


def read_detections(text: str, tag: str | None, canvas: Canvas, num_true: int = 0) -> list[DetectedBox]:
    """Reads the one list in the `tag` of a text (None: the whole text), which may stand in one ```json fence.

    `[{'Position': [x1, y1, x2, y2], 'Confidence': c}, ...]` (Visual-RFT) or `[{"bbox_2d": [...], "label": "cat"}]`
    (Qwen), of which one alone needs no list; `No Objects` is an empty one. Where no confidence is written it is 1. A
    box that is written again is the first one written again: it keeps the first one's confidence and label.

    Raises ParseError for anything else, a confidence outside of [0, 1], and more than MAX_DETECTIONS, or `num_true`
    where that is more.
    """
    return [_detection(one, canvas) for one in _items(text, tag, num_true)]


def read_boxes(text: str, tag: str | None, canvas: Canvas, num_true: int = 0) -> list[Box]:
    """Reads the boxes in the `tag` of a text, written as for `read_detections` or as lists: `[[x1, y1, x2, y2], ...]`.

    One box needs no list around it. Corners are as written. Raises ParseError as `read_detections` does.
    """
    items = _items(text, tag, num_true)
    if len(items) == 4 and all(map(is_number, items)):
        items = [items]
    return [_detection(one, canvas).box if isinstance(one, dict) else _corners(one, canvas) for one in items]


def _items(text: str, tag: str | None, num_true: int) -> list[object]:
    """Reads the entries of the one list in the `tag` of a text; one dictionary is a list, `No Objects` is empty."""
    inner = unfenced(extract(text, tag)).strip()
    if inner.rstrip(".").casefold() == "no objects":
        return []
    items = read_literal(inner)
    items = [items] if isinstance(items, dict) else items
    if not isinstance(items, list):
        raise ParseError(f"detections are a list, got {shown(inner)}")
    if len(items) > (most := max(MAX_DETECTIONS, num_true)):
        raise ParseError(f"an answer may hold {most} detections, got {len(items)}")
    return items


def unfenced(text: str) -> str:
    """Returns the content of the one fence of three backticks around a whole text; the text itself without a fence."""
    parts = text.split("```")
    if len(parts) == 1:
        return text
    if len(parts) != 3 or parts[0].strip() or parts[2].strip():
        raise ParseError("needs one fence of three backticks, and nothing around it")
    return parts[1].removeprefix("json")


def _detection(entry: object, canvas: Canvas) -> DetectedBox:
    if not isinstance(entry, dict):
        raise ParseError(f"a detection is a dictionary, got {shown(str(entry))}")
    place, confidence, label = (_one(entry, names) for names in (_PLACES, _CONFIDENCES, _LABELS))
    box = _corners(place, canvas)
    if confidence is None:
        confidence = 1.0
    if not isinstance(confidence, int | float) or isinstance(confidence, bool) or not 0 <= confidence <= 1:
        raise ParseError(f"a confidence is a number between 0 and 1, got {shown(str(confidence))}")
    if label is not None and not isinstance(label, str):
        raise ParseError(f"a label is a text, got {shown(str(label))}")
    return DetectedBox(box, float(confidence), None if label is None else composed(label))


def _corners(place: object, canvas: Canvas) -> Box:
    if not isinstance(place, list) or len(place) != 4 or not all(map(is_number, place)):
        raise ParseError(f"a detection needs a box of four numbers, got {shown(str(place))}")
    x1, y1, x2, y2 = place
    return canvas.box_to_original((x1, y1, x2, y2))


def _one(entry: dict[str, object], names: tuple[str, ...]) -> object:
    """Returns the value under one of these names; None where the dictionary has none of them."""
    there = [name for name in names if name in entry]
    if len(there) > 1:
        raise ParseError(f"a detection has {' and '.join(there)}, which mean the same")
    return entry[there[0]] if there else None
