"""Values of a row as the typed fields of a target. A value that does not fit raises BadRow."""

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, get_args

from mmrl.parsing.actions.action import Kind
from mmrl.parsing.actions.names import named
from mmrl.parsing.coordinates import Box, Canvas, Convention, Point
from mmrl.prompts.row_pictures import BadRow
from mmrl.system.spelling import did_you_mean

LARGEST = 1e9  # of a coordinate; NaN is not below it, and Python's whole numbers may be too large for a float
OVERHANG = 1.0  # pixels by which rounding may push a corner over the edge; it is then moved back


def parsed(value: Any) -> Any:
    """Returns the value of JSON text (the cell of a table); any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def numbers(value: Any, name: str, counts: Sequence[int]) -> tuple[float, ...]:
    """Returns a list of finite numbers; `counts`: the lengths that are allowed."""
    items = parsed(value)
    allowed = " or ".join(map(str, counts))
    if not isinstance(items, list | tuple) or len(items) not in counts:
        raise BadRow(f"{name} needs {allowed} numbers, got {_short(value)}")
    if any(isinstance(x, bool) or not isinstance(x, int | float) or not abs(x) < LARGEST for x in items):
        raise BadRow(f"{name} needs {allowed} finite numbers, got {_short(value)}")
    return tuple(float(x) for x in items)


def box(value: Any, name: str, size: tuple[int, int], convention: Convention = "original") -> Box:
    """Returns x1, y1, x2, y2 in pixels of an image of `size` (width, height), from the unit of the row.

    Raises BadRow for a box that is empty, inverted, or more than a pixel outside of the image.
    """
    x1, y1, x2, y2 = Canvas(size, size, convention).box_to_original(_four(numbers(value, name, [4])))
    if x2 <= x1 or y2 <= y1:
        raise BadRow(f"{name} needs x1 < x2 and y1 < y2, got {_short(value)}")
    (left, top), (right, bottom) = _inside((x1, y1), size, name, value), _inside((x2, y2), size, name, value)
    if right <= left or bottom <= top:  # it lay wholly in the overhang
        raise BadRow(f"{name} {_short(value)} lies outside of the image of {size[0]} x {size[1]} pixels")
    return left, top, right, bottom


def point(value: Any, name: str, size: tuple[int, int], convention: Convention = "original") -> Point:
    """Returns x, y in pixels of an image of `size` (width, height). Raises BadRow for a point outside the image."""
    x, y = numbers(value, name, [2])
    return _inside(Canvas(size, size, convention).point_to_original((x, y)), size, name, value)


def detections(boxes: Sequence[Box], labels: Sequence[str] | None) -> dict[str, Any]:
    """Returns `boxes`, `labels` where there are any, and `box` where there is only one box."""
    if labels is not None and len(labels) != len(boxes):
        raise BadRow(f"there are {len(boxes)} boxes and {len(labels)} labels")
    fields: dict[str, Any] = {"boxes": tuple(boxes), "labels": None if labels is None else tuple(labels)}
    return fields | ({"box": boxes[0]} if len(boxes) == 1 else {})


def texts(value: Any, name: str) -> tuple[str, ...]:
    """Returns a list of texts."""
    items = parsed(value)
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise BadRow(f"{name} needs a list of texts, got {_short(value)}")
    return tuple(items)


def many(value: Any, name: str) -> list[Any]:
    """Returns a list of any values."""
    items = parsed(value)
    if not isinstance(items, list | tuple):
        raise BadRow(f"{name} needs a list, got {_short(value)}")
    return list(items)


def answers(value: Any) -> str | tuple[str, ...] | None:
    """Returns the right answer as text (see `answer`), or several right answers as a list of texts."""
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        return tuple(answer(one) or "" for one in value)
    return answer(value)


def answer(value: Any) -> str | None:
    """Returns the right answer as text, without `<answer>` tags around it; numbers in digits, without an exponent."""
    if value is None:
        return None
    if isinstance(value, float) and math.isfinite(value):
        return f"{Decimal(repr(value)):f}"  # 0.00001, which JSON writes as 1e-05
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    start, end = text.rfind("<answer>"), text.rfind("</answer>")
    return text[start + len("<answer>") : end].strip() if 0 <= start < end else text.strip()


def unfenced(text: str) -> str:
    """Returns the text between ```json and ```; the whole text where there are none."""
    _, fence, rest = text.partition("```json")
    return rest.partition("```")[0].strip() if fence else text.strip()


def action(value: Any) -> str:
    """Returns mmrl's name for the kind of an action; an action that presses a key (`press_back`) as it is."""
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"an action needs a name, got {_short(value)}")
    meant = named(value)
    if meant is None:
        raise BadRow(f"unknown action {value!r}{did_you_mean(value, get_args(Kind))}")
    kind, keys = meant
    return value.strip().lower() if keys else kind


def _inside(corner: Point, size: tuple[int, int], name: str, value: Any) -> Point:
    clipped = tuple(min(max(x, 0.0), float(limit)) for x, limit in zip(corner, size, strict=True))
    if max(abs(x - y) for x, y in zip(clipped, corner, strict=True)) > OVERHANG:
        raise BadRow(f"{name} {_short(value)} lies outside of the image of {size[0]} x {size[1]} pixels")
    return clipped[0], clipped[1]


def _four(sides: tuple[float, ...]) -> Box:
    x1, y1, x2, y2 = sides
    return x1, y1, x2, y2


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
