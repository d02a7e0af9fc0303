"""Masks in their written forms, and as pixels: COCO's run lengths, polygons and boxes.

Not by pycocotools: of run lengths that are too short it returns memory that nobody wrote, and answers are written by a
stranger. Its polygons are rounded to a grid of a fifth of a pixel, here they hold the pixels whose centre is inside.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrl.parsing.answers import ParseError, shown
from mmrl.parsing.coordinates import Canvas, Point

from .answers import is_number

Mask = NDArray[np.bool_]  # [H, W]
Ring = tuple[Point, ...]  # the corners of a polygon, in order

MAX_PIXELS = 2**26
MAX_CORNERS = 2000  # of all polygons of one mask
MAX_RINGS = 100  # polygons of one mask; each is filled by itself
_SHAPES = ("segmentation", "polygon", "polygons", "mask", "bbox_2d", "bbox", "box")


@dataclass(frozen=True)
class RunLengths:
    """A mask in COCO's run lengths: numbers of pixels, column by column, outside and inside in turn."""

    height: int
    width: int
    counts: tuple[int, ...]


def read_shape(value: object) -> RunLengths | tuple[Ring, ...]:
    """Reads a mask as it is written in JSON or Python; coordinates are as written.

    Run lengths as pycocotools have them, `{"size": [height, width], "counts": "..."}`, or a list of counts; a polygon,
    `[[x, y], [x, y], [x, y], ...]` or `[x1, y1, x2, y2, x3, y3, ...]`; a box, `[x1, y1, x2, y2]`; a list of polygons
    and boxes, which are one mask together; each of them also in a dictionary under one of `segmentation`, `polygon`,
    `polygons`, `mask`, `bbox_2d`, `bbox`, `box`.

    Raises ParseError for anything else, for more than MAX_CORNERS, MAX_RINGS or MAX_PIXELS, and for a box with its
    corners in the wrong order.
    """
    if isinstance(value, dict) and not {"size", "counts"} <= set(value):
        there = [name for name in _SHAPES if name in value]
        if len(there) != 1 or (isinstance(value[there[0]], dict) and "counts" not in value[there[0]]):
            raise ParseError(f"a mask needs one of {', '.join(_SHAPES)}, got {shown(str(value))}")
        return read_shape(value[there[0]])
    if isinstance(value, dict):
        return _run_lengths(value["size"], value["counts"])
    rings = tuple(_rings(value))
    if not 0 < len(rings) <= MAX_RINGS or sum(map(len, rings)) > MAX_CORNERS:
        raise ParseError(
            f"a mask has 1 to {MAX_RINGS} polygons and at most {MAX_CORNERS} corners, got {shown(str(value))}"
        )
    return rings


def pixels_of(shape: RunLengths | tuple[Ring, ...], canvas: Canvas, *, is_answer: bool) -> Mask:
    """Returns a mask [H, W] of the original image; a polygon holds the pixels whose centre is inside (even-odd rule).

    Coordinates of an answer are in the unit of the canvas, those of a target in pixels of the original image. Raises
    ParseError for run lengths of another size than the original image's.
    """
    width, height = canvas.original
    if isinstance(shape, RunLengths):
        if (shape.height, shape.width) != (height, width):
            raise ParseError(f"run lengths are of {shape.width} x {shape.height} pixels, the image {width} x {height}")
        runs = np.repeat(np.arange(len(shape.counts)) % 2 == 1, shape.counts)
        return runs.reshape((height, width), order="F")
    filled = np.zeros((height, width), dtype=bool)
    for ring in shape:
        corners = np.asarray([canvas.point_to_original(point) for point in ring] if is_answer else ring)  # [V, 2]
        left, top = np.clip(np.floor(corners.min(0)), 0, (width, height)).astype(int).tolist()
        right, bottom = np.clip(np.ceil(corners.max(0)), 0, (width, height)).astype(int).tolist()
        filled[top:bottom, left:right] |= fill(corners - (left, top), bottom - top, right - left)
    return filled


def fill(corners: NDArray[np.float64], height: int, width: int) -> Mask:
    """Returns [height, width] bool: whether a pixel's centre is inside of a polygon [V, 2], by the even-odd rule.

    Every edge changes what lies to its right: the parity of the changes up to a pixel says whether it is inside.
    """
    start, end = corners, np.roll(corners, -1, axis=0)
    rows = np.arange(height) + 0.5
    crosses = (start[:, 1:] <= rows) != (end[:, 1:] <= rows)  # [V, height]
    edge, row = np.nonzero(crosses)
    share = (rows[row] - start[edge, 1]) / (end[edge, 1] - start[edge, 1])
    x = start[edge, 0] + share * (end[edge, 0] - start[edge, 0])
    column = np.clip(np.ceil(x - 0.5), 0, width).astype(np.int64)  # the first pixel whose centre is not left of x
    changes = np.zeros((height, width + 1), dtype=np.uint8)
    np.add.at(changes, (row, column), 1)  # may go round at 256, which keeps the parity
    inside: Mask = np.cumsum(changes[:, :width], axis=1, dtype=np.uint8) % 2 == 1
    return inside


def twice_area(ring: Ring) -> float:
    """Returns twice the area of a polygon that does not cross itself."""
    pairs = zip(ring, (*ring[1:], ring[0]), strict=True)
    return abs(sum(x * other_y - other_x * y for (x, y), (other_x, other_y) in pairs))


def _rings(value: object) -> list[Ring]:
    """Returns the rings of a polygon, a box, or a list of polygons and boxes."""
    if not isinstance(value, list | tuple):
        raise ParseError(f"a polygon is a list, got {shown(str(value))}")
    if _is_ring(value):
        return [_ring(value)]
    if not all(isinstance(one, list | tuple) and _is_ring(one) for one in value):
        raise ParseError(f"a mask is a list of polygons or boxes, got {shown(str(value))}")
    return [_ring(one) for one in value]


def _is_ring(value: Sequence[object]) -> bool:
    is_flat = len(value) >= 4 and len(value) % 2 == 0 and all(map(is_number, value))
    return is_flat or (len(value) >= 3 and all(map(_is_pair, value)))


def _is_pair(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(is_number, value))


def _ring(value: Sequence[Any]) -> Ring:
    pairs = value if _is_pair(value[0]) else list(zip(value[::2], value[1::2], strict=True))
    ring = tuple((float(x), float(y)) for x, y in pairs)
    if len(ring) > 2:
        return ring
    (x1, y1), (x2, y2) = ring
    if not (x1 < x2 and y1 < y2):
        raise ParseError(f"a box is [x1, y1, x2, y2] with x1 < x2 and y1 < y2, got {shown(str(value))}")
    return (x1, y1), (x2, y1), (x2, y2), (x1, y2)


def _run_lengths(size: Any, counts: Any) -> RunLengths:
    is_size = isinstance(size, list | tuple) and len(size) == 2 and all(_is_whole(side) and side > 0 for side in size)
    if not is_size or math.prod(size) > MAX_PIXELS:
        raise ParseError(f"the size of run lengths is [height, width], at most {MAX_PIXELS} pixels, got {size!r}")
    height, width = size
    if isinstance(counts, bytes):
        counts = counts.decode("latin-1")
    if isinstance(counts, str):
        counts = _decompressed(counts)
    if not isinstance(counts, list | tuple) or not all(_is_whole(count) and count >= 0 for count in counts):
        raise ParseError(f"run lengths are whole numbers of at least 0, got {shown(str(counts))}")
    if sum(counts) != height * width:
        raise ParseError(f"run lengths of {width} x {height} pixels add up to {sum(counts)}")
    return RunLengths(height, width, tuple(counts))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _decompressed(text: str) -> list[int]:
    """Reads counts from COCO's letters: five bits each from `0` on, the sixth for more to follow, the last a sign.

    From the fourth number on it is the difference to the one two places before.
    """
    counts: list[int] = []
    value, shift = 0, 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64 or shift > 30:
            raise ParseError(f"these are no compressed run lengths: {shown(text)}")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (bits >> 4 & 1) << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value, shift = 0, 0
    if shift:
        raise ParseError(f"compressed run lengths end too early: {shown(text)}")
    return counts
