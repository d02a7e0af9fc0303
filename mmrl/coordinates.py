"""The one place where coordinates change their unit: pixels of the original image, and the numbers a model writes."""

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
    Nothing is clamped: an answer outside of the image stays outside.

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
