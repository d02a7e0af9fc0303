"""How well an answered mask covers the true one, or answered points lie in it."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, extract, read_literal, shown
from mmrl.parsing.coordinates import Canvas, Point

from ..base.answers import TagReward, is_number
from ..base.detections import unfenced
from ..base.grounding import canvas_of
from ..base.masks import Mask, RunLengths, pixels_of, read_shape, twice_area

Measure = Literal["iou", "dice", "points"]
MAX_POINTS = 300


@dataclass(frozen=True)
class MaskIou(TagReward):
    """Overlap of the answered mask a with `target.mask` m, counted in pixels of the original image, in [0, 1].

      iou     |a and m| / |a or m| (the reward of SAM-R1 and its kin before its steps)
      dice    2 |a and m| / (|a| + |m|)
      points  of n answered points, those inside of m / max(n, `num_points`); one that is written again is outside.
              Seg-Zero and SAM-R1 hand such points to a segmenter; this is what can be said of them without one
    With a `threshold` the score is 1 where that number is above it, else 0.

    The target is in run lengths, `{"size": [height, width], "counts": ...}` as pycocotools and COCO's files have them
    (compressed or not), of the size of the original image, or it is polygons, `[[x1, y1, x2, y2, x3, y3, ...], ...]`,
    or a box, in its pixels. The answer is one of these as JSON in the `tag` (None: the whole text), and nothing beside
    it, in the unit that the model writes coordinates in; polygons may be lists of points too, and points are
    `[[x, y], ...]` or `[{"point_2d": [x, y]}, ...]`. A polygon holds the pixels whose centre it holds (pycocotools also
    takes some that it touches). What lies outside of the image does not count. 0 for anything else, run lengths of
    another size, and a box with its corners in the wrong order.
    """

    source: ClassVar[str] = "Huang et al. 2025 (SAM-R1), arXiv 2505.22596"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.mask"})
    batch_size: ClassVar[int | None] = None

    measure: Measure = "iou"
    threshold: float | None = None  # in [0, 1)
    num_points: int = 2  # of `points`: how many the answer should have at least; Seg-Zero's
    tag: str | None = "answer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measure not in get_args(Measure):
            raise ValueError(f"measure must be one of {', '.join(get_args(Measure))}, got {self.measure!r}")
        if self.threshold is not None and not 0 <= self.threshold < 1:
            raise ValueError(f"threshold must be in [0, 1), got {self.threshold}")
        if self.num_points < 1:
            raise ValueError(f"num_points must be at least 1, got {self.num_points}")

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no mask, or an empty one."""
        _true_shape(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for a target that is no mask of the image, or a prompt without an image."""
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
                value = 0.0
            scores.append(value if self.threshold is None else float(value > self.threshold))
        return torch.tensor(scores, dtype=torch.float32)

    def _judge(self, said: object, true: Mask, canvas: Canvas) -> float:
        if self.measure == "points":
            points = _read_points(said, canvas)
            return sum(_holds(true, point) for point in set(points)) / max(len(points), self.num_points)
        answered = pixels_of(read_shape(said), canvas, is_answer=True)
        both, total = np.count_nonzero(answered & true), np.count_nonzero(answered) + np.count_nonzero(true)
        return both / (total - both) if self.measure == "iou" else 2 * both / total


def _holds(mask: Mask, point: Point) -> bool:
    x, y = point
    return 0 <= x < mask.shape[1] and 0 <= y < mask.shape[0] and bool(mask[int(y), int(x)])


def _read_points(said: object, canvas: Canvas) -> list[Point]:
    """Points in pixels of the original image; raises ParseError where this is no list of them."""
    if isinstance(said, list) and len(said) == 2 and all(map(is_number, said)):
        said = [said]
    if not isinstance(said, list) or len(said) > MAX_POINTS:
        raise ParseError(f"points are a list of at most {MAX_POINTS}, got {shown(str(said))}")
    points = []
    for one in said:
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
