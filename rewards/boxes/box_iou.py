"""The overlap of the answered box with the true one, or of all boxes with all true ones: IoU and its kin."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Box

from ..base.answers import TagReward
from ..base.boxes import BoxKind, are_new, box_overlap, has_area, pairs_by_overlap
from ..base.detections import read_boxes
from ..base.grounding import answered_boxes, canvas_of, target_box, target_boxes, target_detections


@dataclass(frozen=True)
class BoxIou(TagReward):
    """The overlap of the answered box with `target.box`, both continuous and in pixels of the original image.

    In [0, 1]. `iou` is intersection over union; the other kinds also tell apart boxes that do not meet, and are mapped
    to [0, 1]:
      giou  (1 + GIoU) / 2, GIoU = IoU - (hull - union) / hull
      diou  (1 + DIoU) / 2, DIoU = IoU - (distance of the centres / diagonal of the hull)^2
      ciou  (1 + max(CIoU, -1)) / 2, CIoU = DIoU - v^2 / (1 - IoU + v), v = (2 / pi (atan(w*/h*) - atan(w/h)))^2
    (Rezatofighi et al. 2019, arXiv 1902.09630; Zheng et al. 2019, arXiv 1911.08287). With a `threshold` the score is 1
    where the overlap is above it, else 0. The score is 0 as well where the text does not hold exactly one box in its
    `tag` (None: anywhere), and for a box without area or with corners in the wrong order.

    With `many` the answer is one list of n boxes, `[[x1, y1, x2, y2], ...]` or `[{"bbox_2d": [...]}, ...]`, in its
    `tag` (None: the whole text), and the target is `target.boxes`, m of them. Answered and true boxes are matched one
    to one so that the sum of overlaps is largest (the Hungarian method), and the score is that sum / max(n, m): a
    missing box, one too many and a repeated one cost the same. A box that is k times in the truth may be written k
    times. No boxes for no objects scores 1. (Perception-R1, Yu et al. 2025, arXiv 2504.07954, matches in this way.)

    VLM-R1's code gives 0 for an overlap of at most one unit, so for all boxes in 0..1; here they count like any others.
    """

    source: ClassVar[str] = "Shen et al. 2025 (VLM-R1), arXiv 2504.07615"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.box"})
    batch_size: ClassVar[int | None] = None

    kind: BoxKind = "iou"  # which overlap; VLM-R1's is iou
    # overlap above which the score is 1, else 0; 0.5 is the usual accuracy; null: the overlap itself
    threshold: Annotated[float, Field(ge=0, lt=1)] | None = None
    many: bool = False  # whether the answer is a list of boxes, matched with `target.boxes`
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.many:
            object.__setattr__(self, "needs", self.needs - {"target.box"} | {"target.boxes"})

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no box, or with `many` no list of boxes."""
        if self.many:
            target_detections(prompt, has_labels=False)
        else:
            target_box(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no box, or a prompt without an image.
        """
        if self.many:
            return torch.tensor([self._judge(batch, row) for row in range(len(batch))], dtype=torch.float32)
        return self._values(answered_boxes(batch, self.tag), target_boxes(batch)).float()

    def _judge(self, batch: RewardBatch, row: int) -> float:
        """Returns the score of one list of boxes."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        boxes, _ = target_detections(batch.prompts[row], has_labels=False)
        canvas = canvas_of(batch, row)
        try:
            answered = read_boxes(batch.outputs.texts[row], self.tag, canvas, len(boxes))
        except ParseError:
            return 0.0
        if not answered or not boxes:
            return float(not answered and not boxes)
        # a box that is written again matches nothing; sorted: any order is the same
        distinct = sorted(box for box, is_new in zip(answered, are_new(answered, boxes), strict=True) if is_new)
        values = self._values(_tensor(distinct)[:, None].expand(-1, len(boxes), 4), _tensor(boxes))
        return sum(float(values[pair]) for pair in pairs_by_overlap(values)) / max(len(answered), len(boxes))

    def _values(self, answered: Tensor, target: Tensor) -> Tensor:
        """Returns the scores [...] of answered boxes [..., 4], as written, against true ones [..., 4]."""
        is_box = has_area(answered)
        safe = torch.where(is_box[..., None], answered, target)  # keeps the formulas away from 0 / 0
        overlap = box_overlap(safe, target, self.kind)
        values = overlap if self.kind == "iou" else (1 + overlap.clamp(min=-1)) / 2
        if self.threshold is not None:
            values = (values > self.threshold).double()
        return torch.where(is_box, values, 0.0)


def _tensor(boxes: list[Box]) -> Tensor:
    return torch.tensor(boxes, dtype=torch.float64)
