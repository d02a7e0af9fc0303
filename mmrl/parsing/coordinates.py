"""The one place where coordinates change their unit: pixels of the original image, and the numbers a model writes.

Maths: docs/maths/agents.md#actions-and-coordinates
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Convention = Literal["original", "resized", "thousand", "unit"]
Box = tuple[float, float, float, float]  # x1, y1, x2, y2
Point = tuple[float, float]  # x, y


@dataclass(frozen=True)
class Canvas:
    """An image as its owner has it, as the model saw it, and the unit in which the model writes coordinates.

    Points are continuous and boxes half-open: x_model = x_original * span / width, on each axis by itself (resizing to
    multiples of a patch scales the two axes differently). The span is
      original: the original size in pixels; resized: the size the model saw (Qwen2.5-VL, UI-TARS-1.5);
      thousand: 1000 (Qwen2-VL, Qwen3-VL, InternVL); unit: 1.
    Nothing is clamped: an answer outside of the image stays outside. As text, coordinates stand on the grid of the
    convention: whole numbers, thousandths for `unit`.

    Raises ValueError for a size below one pixel or an unknown convention.
    """

    original: tuple[int, int]  # width, height in pixels
    resized: tuple[int, int]  # width, height in pixels, after the processor
    convention: Convention

    def __post_init__(self) -> None:
        if min(*self.original, *self.resized) < 1:
            raise ValueError(f"an image has at least one pixel a side, got {self.original} and {self.resized}")
        if self.convention not in get_args(Convention):
            raise ValueError(f"convention must be one of {', '.join(get_args(Convention))}, got {self.convention!r}")

    @property
    def span(self) -> tuple[float, float]:
        """What the right and the lower edge of the image are called in the model's unit."""
        if self.convention == "original":
            return float(self.original[0]), float(self.original[1])
        if self.convention == "resized":
            return float(self.resized[0]), float(self.resized[1])
        return (1000.0, 1000.0) if self.convention == "thousand" else (1.0, 1.0)

    def point_to_original(self, point: Point) -> Point:
        """From the model's unit to pixels of the original image."""
        (width, height), (x_span, y_span) = self.original, self.span
        return point[0] * width / x_span, point[1] * height / y_span

    def point_to_model(self, point: Point) -> Point:
        """From pixels of the original image to the model's unit, not rounded."""
        (width, height), (x_span, y_span) = self.original, self.span
        return point[0] * x_span / width, point[1] * y_span / height

    def box_to_original(self, box: Box) -> Box:
        """Both corners by `point_to_original`."""
        return *self.point_to_original(box[:2]), *self.point_to_original(box[2:])

    def box_to_model(self, box: Box) -> Box:
        """Both corners by `point_to_model`."""
        return *self.point_to_model(box[:2]), *self.point_to_model(box[2:])

    @property
    def decimals(self) -> int:
        """Digits after the point of a coordinate as text."""
        return 3 if self.convention == "unit" else 0

    @property
    def range_in_words(self) -> str:
        """What a prompt tells the model about the unit of its coordinates."""
        width, height = self.span
        spoken = {"original": " (pixels)", "resized": " (pixels)", "thousand": "", "unit": ", with three decimals"}
        return f"x runs from 0 to {width:.0f} and y from 0 to {height:.0f}{spoken[self.convention]}"


def format_point(point: Point, canvas: Canvas) -> str:
    """`x, y` in the model's unit, rounded to its grid; `point` in pixels of the original image."""
    return _format(canvas.point_to_model(point), canvas.decimals)


def format_box(box: Box, canvas: Canvas) -> str:
    """`x1, y1, x2, y2` in the model's unit, rounded to its grid; `box` in pixels of the original image.

    A side below half a unit of the grid can vanish.
    """
    return _format(canvas.box_to_model(box), canvas.decimals)


def _format(values: Sequence[float], decimals: int) -> str:
    return ", ".join(f"{round(value, decimals) + 0.0:.{decimals}f}" for value in values)  # + 0.0: never "-0"


def resized_size(width: int, height: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Width and height of an image after the processors of Qwen's models: the `smart_resize` of the field.

    Each side goes to the nearest multiple of `factor` by itself (a tie to the even multiple), and where the area is
    then outside of the limits both are scaled by one number and rounded inwards. Applied twice it changes nothing
    more, if the limits are well apart and no side had to be kept from vanishing (such an image stays too large).

    Args:
        width, height: pixels of the original image, at least 1. factor: patch size times merge size, 28 for Qwen2-VL
        and Qwen2.5-VL, 32 for Qwen3-VL. min_pixels, max_pixels: limits of the area after resizing.

    Raises:
        ValueError: no pixels, or one side is more than 200 times the other; the processors refuse these too.
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
