"""How well the box in an answer covers the true one: IoU and its kin."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.answers import check_tag
from mmrl.contracts import Granularity, RewardBatch
from mmrl.rewards._boxes import BoxKind, box_overlap, has_area
from mmrl.rewards._places import answered_boxes, target_boxes


@dataclass(frozen=True)
class BoxIou:
    """Overlap of the answered box with `target.box`, both continuous and in pixels of the original image, in [0, 1].

    `iou` is intersection over union; the others also tell boxes that do not meet apart and are mapped to [0, 1]:
      giou  (1 + GIoU) / 2, GIoU = IoU - (hull - union) / hull
      diou  (1 + DIoU) / 2, DIoU = IoU - (distance of the centres / diagonal of the hull)^2
      ciou  (1 + max(CIoU, -1)) / 2, CIoU = DIoU - v^2 / (1 - IoU + v), v = (2 / pi (atan(w*/h*) - atan(w/h)))^2
    (Rezatofighi et al. 2019, arXiv 1902.09630; Zheng et al. 2019, arXiv 1911.08287).
    With a `threshold` the score is 1 where that number is above it, else 0. 0 as well where the text does not hold
    exactly one box in its `tag` (None: anywhere), and for a box without area or with corners in the wrong order.
    """

    source: ClassVar[str] = "Shen et al. 2025 (VLM-R1), arXiv 2504.07615"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.box"})
    batch_size: ClassVar[int | None] = None

    kind: BoxKind = "iou"  # VLM-R1's
    threshold: float | None = None  # in [0, 1): 0.5 is the usual accuracy
    tag: str | None = "answer"

    def __post_init__(self) -> None:
        check_tag(self.tag)
        if self.threshold is not None and not 0 <= self.threshold < 1:
            raise ValueError(f"threshold must be in [0, 1), got {self.threshold}")

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for a target that is no box, or a prompt without an image."""
        answered, target = answered_boxes(batch, self.tag), target_boxes(batch)
        is_box = has_area(answered)
        safe = torch.where(is_box[:, None], answered, target)  # keeps the formulas away from 0 / 0
        overlap = box_overlap(safe, target, self.kind)
        values = overlap if self.kind == "iou" else (1 + overlap.clamp(min=-1)) / 2
        if self.threshold is not None:
            values = (values > self.threshold).double()
        return torch.where(is_box, values, 0.0).float()
