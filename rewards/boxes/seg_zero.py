"""A box and two points from which an object can be segmented: Seg-Zero."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, extract, read_literal, tagged
from mmrl.parsing.coordinates import Box, Canvas, Point

from ..base.answers import is_number
from ..base.boxes import box_overlaps
from ..base.detections import unfenced
from ..base.grounding import canvas_of, target_box, true_point

Prompting = tuple[Box, Point, Point]
_STRICT = ("bbox", "points_1", "points_2")


@dataclass(frozen=True)
class SegZero(Checked):
    """The mean of five terms, each 0 or 1, of an answered box and two points that segment `target.box`.

    The answer is `{"bbox": [x1, y1, x2, y2], "points_1": [x, y], "points_2": [x, y]}` in its `answer` tag. Liu et al.
    2025 (Seg-Zero, arXiv 2503.06520), with their numbers; they add the terms: weight 5 of this reward.
      thinking  the text is `<think>...</think> <answer>...</answer>` and nothing else
      format    the answer is one such dictionary of numbers. `strict`: with exactly these keys, others beside them do
                not matter; else (soft) the first key with `bbox` and the first two with `point` in their names
      iou       IoU of the box and `target.box` above `min_iou`
      box       mean distance of its four sides from the true ones below `box_distance`
      points    both points inside of the answered box, borders included, and their mean distance from the two of
                `target.points`, in the better order, below `point_distance`
    Distances are in pixels of the image as Seg-Zero trains on it, stretched to `side` x `side`.

    The paper's code differs: its boxes take one pixel more on each side, so that thin ones overlap more; its points are
    cut to whole numbers; and it reads the first braces of the text, from the thoughts too. Here boxes are continuous, a
    box with its corners in the wrong order overlaps nothing, and only the one pair of answer tags is read. Terms are
    independent, as in the paper: an answer without thoughts loses one of five.
    """

    source: ClassVar[str] = "Liu et al. 2025 (Seg-Zero), arXiv 2503.06520"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.box", "target.points"})
    batch_size: ClassVar[int | None] = None

    strict: bool = False  # whether the answer must have exactly the keys bbox, points_1 and points_2
    min_iou: Annotated[float, Field(ge=0, lt=1)] = 0.5  # IoU above which the term `iou` is 1
    box_distance: Annotated[float, Field(gt=0)] = 10.0  # distance in pixels below which the term `box` is 1
    point_distance: Annotated[float, Field(gt=0)] = 100.0  # distance in pixels below which the term `points` is 1
    # width and height in pixels of the stretched image in which distances are measured
    side: Annotated[float, Field(gt=0)] = 840.0

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is not a box and two points."""
        _true_places(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target without a box and two points, or a prompt without an image.
        """
        assert batch.outputs.texts is not None, "scoring checks needs"
        scores = []
        for row, text in enumerate(batch.outputs.texts):
            canvas = canvas_of(batch, row)
            true = _true_places(batch.prompts[row])
            try:
                terms = [True, *self._terms(_read(text, canvas, self.strict), true, canvas)]
            except ParseError:
                terms = []
            scores.append((_is_thinking(text) + sum(terms)) / 5)
        return torch.tensor(scores, dtype=torch.float32)

    def _terms(self, answered: Prompting, true: Prompting, canvas: Canvas) -> list[bool]:
        """Returns the terms of IoU, box and points."""
        box, *points = _stretched(answered, canvas, self.side)
        true_box, *true_points = _stretched(true, canvas, self.side)
        boxes = torch.tensor([box, true_box], dtype=torch.float64)
        overlap = float(box_overlaps(boxes[:1], boxes[1:]))
        aside = sum(abs(one - other) for one, other in zip(box, true_box, strict=True)) / 4
        is_inside = all(box[0] <= x <= box[2] and box[1] <= y <= box[3] for x, y in points)
        first, second = points
        orders = (first, second), (second, first)
        apart = min(sum(map(math.dist, order, true_points)) for order in orders) / 2
        return [overlap > self.min_iou, aside < self.box_distance, is_inside and apart < self.point_distance]


def _is_thinking(text: str) -> bool:
    try:
        return not tagged(text, ("think", "answer")).outside.strip()
    except ParseError:
        return False


def _read(text: str, canvas: Canvas, strict: bool) -> Prompting:
    """Returns the box and points of an answer, in pixels of the original image.

    Raises ParseError where there are none.
    """
    answer = read_literal(unfenced(extract(text, "answer")).strip())
    if not isinstance(answer, dict):
        raise ParseError("the answer is a dictionary of a box and two points")
    boxes = [key for key in answer if "bbox" in key.lower()]
    points = [key for key in answer if "point" in key.lower() and "bbox" not in key.lower()]
    keys = _STRICT if strict else (*boxes[:1], *points[:2])
    if len(keys) != 3 or not set(keys) <= set(answer):
        raise ParseError(f"the answer needs {', '.join(_STRICT)}")
    for key, count in zip(keys, (4, 2, 2), strict=True):
        if not isinstance(answer[key], list) or len(answer[key]) != count or not all(map(is_number, answer[key])):
            raise ParseError(f"{key} needs {count} numbers")
    (x1, y1, x2, y2), (x, y), (other_x, other_y) = (answer[key] for key in keys)
    corners = canvas.box_to_original((x1, y1, x2, y2))
    return corners, canvas.point_to_original((x, y)), canvas.point_to_original((other_x, other_y))


def _stretched(places: Prompting, canvas: Canvas, side: float) -> Prompting:
    """Returns the places on the image stretched to side x side pixels."""
    x, y = side / canvas.original[0], side / canvas.original[1]
    (x1, y1, x2, y2), (px, py), (qx, qy) = places
    return (x1 * x, y1 * y, x2 * x, y2 * y), (px * x, py * y), (qx * x, qy * y)


def _true_places(prompt: Prompt) -> Prompting:
    points = prompt.target["points"]
    if not isinstance(points, list | tuple) or len(points) != 2:
        raise ValueError(f"target.points must be two points, [[x, y], [x, y]], got {points!r} for {prompt.text!r}")
    first, second = (true_point(point, "a point of target.points", prompt) for point in points)
    return target_box(prompt), first, second
