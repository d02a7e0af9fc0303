"""Do a few regions, apart and of a fair size, show all that is to be found? (ACTIVE-O3)"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Box, Canvas

from ..base.answers import TagReward, weighted_mean
from ..base.boxes import box_overlaps, has_area
from ..base.detections import read_boxes
from ..base.grounding import canvas_of, target_detections


@dataclass(frozen=True)
class RegionCoverage(TagReward):
    """The weighted mean of three parts of an answer's regions, each in [0, 1]; the regions are to show `target.boxes`:

      coverage  `area`: the share of the true boxes' area that lies in at least one region
                `matched`: the share of true boxes whose IoU with some region is at least `min_iou`
      apart     1 where no two regions have an IoU above `max_overlap`, else 0
      size      1 where the area of each region, over the image's, is from `min_area` to `max_area`, else 0

    Zhu et al. 2025 (ACTIVE-O3), arXiv 2505.21457, section 4.4 and appendix B, the heuristic reward, with its numbers;
    the paper adds the parts: weight 3 of this reward. Its fourth part is `format_tags`, and what a detector makes of
    the regions is another reward. Without that one, two halves of the image cover everything: they are apart, and of a
    fair size.

    The answer is a list of boxes in its `tag` (None: the whole text), as `detection` reads it, in the coordinates of
    the whole image. The score is 0 without such a list, for no region, and for more than `max_regions`. Regions are
    cut at the borders of the image, as a crop is; one without area, or with corners in the wrong order, covers nothing
    and has no size. The paper's areas have one pixel more on each side; here boxes are continuous. The paper gives no
    number for `min_iou`.
    """

    source: ClassVar[str] = "Zhu et al. 2025 (ACTIVE-O3), arXiv 2505.21457"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.boxes"})
    batch_size: ClassVar[int | None] = None

    measure: Literal["area", "matched"] = "area"  # what is covered: area, or whole boxes by their IoU
    # of `matched`: IoU from which a region matches a true box; 0.5 is the usual number
    min_iou: Annotated[float, Field(gt=0, le=1)] = 0.5
    max_overlap: Annotated[float, Field(ge=0, le=1)] = 0.3  # the largest IoU of two regions that are apart
    min_area: Annotated[float, Field(ge=0, le=1)] = 0.01  # the smallest area of a region, over the image's
    max_area: Annotated[float, Field(gt=0, le=1)] = 0.5  # the largest one
    max_regions: Annotated[int, Field(ge=1, le=300)] = 3  # how many regions an answer may have
    coverage_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of the coverage
    apart_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of being apart
    size_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of the sizes
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_area > self.max_area:
            raise ValueError(f"min_area must be at most max_area, got {self.min_area} and {self.max_area}")
        if not any(self._weights):
            raise ValueError("coverage_weight, apart_weight and size_weight must not all be 0")

    @property
    def _weights(self) -> tuple[float, float, float]:
        return self.coverage_weight, self.apart_weight, self.size_weight

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no list of boxes, or an empty one."""
        _true_boxes(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target without boxes, or a prompt without an image.
        """
        return torch.tensor([self._judge(batch, row) for row in range(len(batch))], dtype=torch.float32)

    def _judge(self, batch: RewardBatch, row: int) -> float:
        assert batch.outputs.texts is not None, "scoring checks needs"
        boxes, canvas = _true_boxes(batch.prompts[row]), canvas_of(batch, row)
        try:
            answered = read_boxes(batch.outputs.texts[row], self.tag, canvas)
        except ParseError:
            return 0.0
        if not 1 <= len(answered) <= self.max_regions:
            return 0.0
        parts = self._parts(_within(answered, canvas), torch.tensor(boxes, dtype=torch.float64), canvas)
        return weighted_mean(parts, self._weights)

    def _parts(self, regions: Tensor, boxes: Tensor, canvas: Canvas) -> tuple[float, float, float]:
        """Returns coverage, apart and size of regions [n, 4] against true boxes [m, 4]."""
        if self.measure == "area":
            coverage = covered_share(boxes, regions)
        else:
            coverage = float((box_overlaps(regions, boxes).amax(0) >= self.min_iou).double().mean())
        overlap = box_overlaps(regions, regions).fill_diagonal_(0)  # [n, n]
        share = (regions[:, 2:] - regions[:, :2]).prod(1) / (canvas.original[0] * canvas.original[1])  # [n]
        is_fair = has_area(regions) & (share >= self.min_area) & (share <= self.max_area)
        return coverage, float(overlap.max() <= self.max_overlap), float(is_fair.all())


def covered_share(boxes: Tensor, regions: Tensor) -> float:
    """Returns the share of the area of boxes [m, 4] that lies in at least one of the regions [n, 4].

    Area in several boxes counts once. The lines of all sides cut the plane into cells, each wholly in or out of a box.
    """
    sides = torch.cat([boxes, regions])
    x, y = sides[:, 0::2].unique(), sides[:, 1::2].unique()
    area = y.diff()[:, None] * x.diff()  # [Y, X]
    true = _cells(boxes, x, y)
    return float(area[true & _cells(regions, x, y)].sum() / area[true].sum())


def _cells(boxes: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Returns [Y, X] bool: which cells between the lines x and y lie in at least one of the boxes [n, 4]."""
    columns = (x[:-1] >= boxes[:, 0:1]) & (x[1:] <= boxes[:, 2:3])  # [n, X]
    rows = (y[:-1] >= boxes[:, 1:2]) & (y[1:] <= boxes[:, 3:4])  # [n, Y]
    return rows.float().T @ columns.float() > 0


def _within(regions: list[Box], canvas: Canvas) -> Tensor:
    """Returns the regions [n, 4] float64, cut at the borders of the image."""
    width, height = canvas.original
    ends = torch.tensor([width, height, width, height], dtype=torch.float64)
    return torch.tensor(regions, dtype=torch.float64).clamp(min=0).minimum(ends)


def _true_boxes(prompt: Prompt) -> list[Box]:
    boxes, _ = target_detections(prompt, has_labels=False)
    if not boxes:
        raise ValueError(f"target.boxes must hold at least one box to cover, got none for {prompt.text!r}")
    return boxes
