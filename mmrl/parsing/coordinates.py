"""Conversion of coordinates between pixels of the original image and the numbers that a model writes, only here.

Maths: docs/maths/agents.md#actions-and-coordinates
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Convention = Literal["original", "resized", "thousand", "unit"]
UNKNOWN_UNIT = (
    "modality.coordinates: it is not known in which unit this model writes coordinates; look at its model card, and "
    "set coordinates to original or resized (pixels), thousand (0 to 1000) or unit (0 to 1)"
)
Box = tuple[float, float, float, float]  # x1, y1, x2, y2
Point = tuple[float, float]  # x, y


@dataclass(frozen=True)
class Canvas:
    """The size of an image before and after the processor, and the unit in which the model writes coordinates.

    Points are continuous and boxes half-open: x_model = x_original * span / width, on each axis by itself, since
    resizing to multiples of a patch scales the two axes differently. The span is
      original: the original size in pixels; resized: the size that the model saw (Qwen2.5-VL, UI-TARS-1.5);
      thousand: 1000 (Qwen2-VL, Qwen3-VL, InternVL); unit: 1.
    Nothing is clamped: a point outside of the image stays outside. As text, coordinates are rounded to whole numbers,
    in `unit` to thousandths.

    The convention is None where it is not known: no coordinates can be converted then.
    Raises ValueError for a size below one pixel or an unknown convention.
    """

    original: tuple[int, int]  # width, height in pixels
    resized: tuple[int, int]  # width, height in pixels, after the processor
    convention: Convention | None  # the unit of coordinates

    def __post_init__(self) -> None:
        if min(*self.original, *self.resized) < 1:
            raise ValueError(f"an image has at least one pixel a side, got {self.original} and {self.resized}")
        if self.convention is not None and self.convention not in get_args(Convention):
            raise ValueError(f"convention must be one of {', '.join(get_args(Convention))}, got {self.convention!r}")

    @property
    def span(self) -> tuple[float, float]:
        """The coordinates of the right and the lower edge of the image in the model's unit.

        Raises ValueError where the unit is not known.
        """
        if self.convention is None:
            raise ValueError(UNKNOWN_UNIT)
        if self.convention == "original":
            return float(self.original[0]), float(self.original[1])
        if self.convention == "resized":
            return float(self.resized[0]), float(self.resized[1])
        return (1000.0, 1000.0) if self.convention == "thousand" else (1.0, 1.0)

    def point_to_original(self, point: Point) -> Point:
        """Converts a point from the model's unit to pixels of the original image."""
        (width, height), (x_span, y_span) = self.original, self.span
        return point[0] * width / x_span, point[1] * height / y_span

    def point_to_model(self, point: Point) -> Point:
        """Converts a point from pixels of the original image to the model's unit, without rounding."""
        (width, height), (x_span, y_span) = self.original, self.span
        return point[0] * x_span / width, point[1] * y_span / height

    def box_to_original(self, box: Box) -> Box:
        """Converts a box from the model's unit to pixels of the original image."""
        return *self.point_to_original(box[:2]), *self.point_to_original(box[2:])

    def box_to_model(self, box: Box) -> Box:
        """Converts a box from pixels of the original image to the model's unit, without rounding."""
        return *self.point_to_model(box[:2]), *self.point_to_model(box[2:])

    @property
    def decimals(self) -> int:
        """The number of decimals of a coordinate as text."""
        return 3 if self.convention == "unit" else 0

    @property
    def range_in_words(self) -> str:
        """The range of coordinates in words, for a prompt."""
        width, height = self.span
        spoken = {
            None: "",
            "original": " (pixels)",
            "resized": " (pixels)",
            "thousand": "",
            "unit": ", with three decimals",
        }
        return f"x runs from 0 to {width:.0f} and y from 0 to {height:.0f}{spoken[self.convention]}"


def format_point(point: Point, canvas: Canvas) -> str:
    """Returns a point, in pixels of the original image, as text `x, y` in the model's unit, rounded."""
    return _format(canvas.point_to_model(point), canvas.decimals)


def format_box(box: Box, canvas: Canvas) -> str:
    """Returns a box, in pixels of the original image, as text `x1, y1, x2, y2` in the model's unit, rounded.

    A side that is shorter than the rounding can vanish.
    """
    return _format(canvas.box_to_model(box), canvas.decimals)


def _format(values: Sequence[float], decimals: int) -> str:
    return ", ".join(f"{round(value, decimals) + 0.0:.{decimals}f}" for value in values)  # + 0.0: never "-0"


def resized_size(width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Returns the width and height of an image after the processors of Qwen's models: the field's `smart_resize`.

    Each side is rounded to the nearest multiple of `factor` (a tie to the even multiple). Where the area is then
    outside of its limits, both sides are scaled by one number and rounded inwards. A second call changes nothing, if
    the limits are well apart and no side was raised to one `factor` (such an image stays too large).

    Args:
        width: of the original image in pixels, at least 1.
        height: of the original image in pixels, at least 1.
        factor: patch size times merge size: 28 for Qwen2-VL and Qwen2.5-VL, 32 for Qwen3-VL.
        min_pixels: lower limit of the area after resizing.
        max_pixels: upper limit of the area after resizing.

    Raises:
        ValueError: a side below 1, or one side more than 200 times the other, which the processors refuse too.
    """
    if min(width, height) < 1:
        raise ValueError(f"an image has at least one pixel a side, got {width} x {height}")
    if max(width, height) > 200 * min(width, height):
        raise ValueError(f"one side may be at most 200 times the other, got {width} x {height}")
    nearest = round(width / factor), round(height / factor)  # may be 0, which counts as too few pixels
    area = nearest[0] * nearest[1] * factor**2
    if area > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        nearest = max(1, math.floor(width / shrink / factor)), max(1, math.floor(height / shrink / factor))
    elif area < min_pixels:
        stretch = math.sqrt(min_pixels / (height * width))
        nearest = math.ceil(width * stretch / factor), math.ceil(height * stretch / factor)
    return nearest[0] * factor, nearest[1] * factor
