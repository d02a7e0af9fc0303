"""The overlap of an answered mask with the true one, or the share of answered points inside of it."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, extract, read_literal, shown
from mmrl.parsing.coordinates import Canvas, Point

from ..base.answers import TagReward, is_number
from ..base.detections import unfenced
from ..base.grounding import canvas_of
from ..base.masks import Mask, RunLengths, pixels_of, read_shape, twice_area

Measure = Literal["iou", "dice", "points", "intersection", "union"]
MAX_POINTS = 300


@dataclass(frozen=True)
class MaskIou(TagReward):
    """The overlap of the answered mask a with `target.mask` m, counted in pixels of the original image, in [0, 1].

      iou     |a and m| / |a or m| (the reward of SAM-R1 and its kin before its steps)
      dice    2 |a and m| / (|a| + |m|)
      points  of n answered points, those inside of m / max(n, `num_points`); a repeated point counts as outside.
              Seg-Zero and SAM-R1 hand such points to a segmenter; this measure needs none
      intersection, union  |a and m| and |a or m| in pixels, from 0 without an end: the ratio of their sums over samples
              is the cIoU of LISA (arXiv 2308.00692); an answer that is no mask has the union |m|
    With a `threshold` the score is 1 where the measure is above it, else 0.

    The target is in run lengths, `{"size": [height, width], "counts": ...}` as pycocotools and COCO's files have them
    (compressed or not), of the size of the original image; or polygons, `[[x1, y1, x2, y2, x3, y3, ...], ...]`, or a
    box, in pixels of that image. The answer is one of these as JSON in the `tag` (None: the whole text), and nothing
    beside it, in the unit in which the model writes coordinates. Answered polygons may be lists of points too, and
    points are `[[x, y], ...]` or `[{"point_2d": [x, y]}, ...]`. A polygon holds the pixels whose centre lies inside of
    it (pycocotools also takes some that it touches). Pixels outside of the image do not count. The score is 0 for
    anything else, run lengths of another size, and a box with its corners in the wrong order.
    """

    source: ClassVar[str] = "Huang et al. 2025 (SAM-R1), arXiv 2505.22596"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.mask"})
    batch_size: ClassVar[int | None] = None

    measure: Measure = "iou"  # the measure of overlap
    # measure above which the score is 1, else 0; null: the measure itself
    threshold: Annotated[float, Field(ge=0, lt=1)] | None = None
    num_points: Annotated[int, Field(ge=1)] = 2  # of `points`: how many the answer should have at least; Seg-Zero's
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def __post_init__(self) -> None:
        """Raises ValueError as its parent does, and for a threshold of a count of pixels."""
        super().__post_init__()
        if self.measure in ("intersection", "union"):
            if self.threshold is not None:
                raise ValueError(f"threshold goes with measures in [0, 1], got the measure {self.measure}")
            object.__setattr__(self, "range", (0.0, math.inf))  # of this one, not of the class

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no mask, or an empty one."""
        _true_shape(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no mask of the image, or a prompt without an image.
        """
        assert batch.outputs.texts is not None, "scoring checks needs"
        known: dict[tuple[int, Canvas], Mask] = {}  # a group shares its prompt
        scores = []
        for row, text in enumerate(batch.outputs.texts):
            canvas, prompt = canvas_of(batch, row), batch.prompts[row]
            if (key := (id(prompt), canvas)) not in known:
                known[key] = _true_mask(prompt, canvas)
            try:
                value = self._judge(read_literal(unfenced(extract(text, self.tag)).strip()), known[key], canvas)
            except ParseError:
                value = float(np.count_nonzero(known[key])) if self.measure == "union" else 0.0
            scores.append(value if self.threshold is None else float(value > self.threshold))
        return torch.tensor(scores, dtype=torch.float32)

    def _judge(self, value: object, true: Mask, canvas: Canvas) -> float:
        if self.measure == "points":
            points = _read_points(value, canvas)
            return sum(_holds(true, point) for point in set(points)) / max(len(points), self.num_points)
        answered = pixels_of(read_shape(value), canvas, is_answer=True)
        both, total = np.count_nonzero(answered & true), np.count_nonzero(answered) + np.count_nonzero(true)
        if self.measure in ("intersection", "union"):
            return float(both if self.measure == "intersection" else total - both)
        return both / (total - both) if self.measure == "iou" else 2 * both / total


def _holds(mask: Mask, point: Point) -> bool:
    x, y = point
    return 0 <= x < mask.shape[1] and 0 <= y < mask.shape[0] and bool(mask[int(y), int(x)])


def _read_points(value: object, canvas: Canvas) -> list[Point]:
    """Returns answered points in pixels of the original image; raises ParseError for anything but a list of points."""
    if isinstance(value, list) and len(value) == 2 and all(map(is_number, value)):
        value = [value]
    if not isinstance(value, list) or len(value) > MAX_POINTS:
        raise ParseError(f"points are a list of at most {MAX_POINTS}, got {shown(str(value))}")
    points = []
    for one in value:
        point = one.get("point_2d") if isinstance(one, dict) else one
        if not isinstance(point, list) or len(point) != 2 or not all(map(is_number, point)):
            raise ParseError(f"a point is two numbers, got {shown(str(one))}")
        points.append(canvas.point_to_original((point[0], point[1])))
    return points


def _true_shape(prompt: Prompt) -> RunLengths | tuple[tuple[Point, ...], ...]:
    try:
        shape = read_shape(prompt.target["mask"])
    except ParseError as error:
        raise ValueError(f"target.mask of {prompt.text!r} is no mask: {error}") from None
    is_empty = not sum(shape.counts[1::2]) if isinstance(shape, RunLengths) else not any(map(twice_area, shape))
    if is_empty:
        raise ValueError(f"target.mask of {prompt.text!r} is empty")
    return shape


def _true_mask(prompt: Prompt, canvas: Canvas) -> Mask:
    try:
        mask = pixels_of(_true_shape(prompt), canvas, is_answer=False)
    except ParseError as error:
        raise ValueError(f"target.mask of {prompt.text!r} is none of this image: {error}") from None
    if not mask.any():
        raise ValueError(f"target.mask of {prompt.text!r} holds no pixel of the image of {canvas.original}")
    return mask
