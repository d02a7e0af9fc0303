"""Does the answered box hit the target, cover it, and have its size? GUI-G1."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward
from ..base.boxes import box_overlap, has_area
from ..base.grounding import answered_boxes, canvas_of, target_box, target_boxes


@dataclass(frozen=True)
class GuiG1(TagReward):
    """The weighted mean of three terms of an answered box, each in [0, 1] and 1 for `target.box` itself.

    Zhou et al. 2025 (GUI-G1, arXiv 2505.15810), with their weights:
      hit   1 where the centre of the answered box lies in the target, borders included; weight 1
      iou   intersection over union; 0.25
      size  4 / (1 / a1 + 1 / b1 + 1 / a2 + 1 / b2), the harmonic mean of a = max(0, 1 - |x - x*| / width of the image)
            and b = max(0, 1 - |y - y*| / height) over both corners, 0 where one of them is; 0.125
    The paper adds the three: weight 1.375 of this reward. The size term keeps boxes from shrinking, which a hit alone
    pays, and from growing, which IoU alone pays.

    The score is 0 where the text does not hold exactly one box in its `tag` (None: anywhere), and for a box without
    area or with corners in the wrong order. The paper's code pays an inverted box for its centre, and its harmonic mean
    can have any value for sides that are off by more than the image (-1, 1, 1 and 1 give 2).
    """

    source: ClassVar[str] = "Zhou et al. 2025 (GUI-G1), arXiv 2505.15810"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.box"})
    batch_size: ClassVar[int | None] = None

    hit_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of the hit
    iou_weight: Annotated[float, Field(ge=0)] = 0.25  # weight of the IoU; the paper's alpha
    size_weight: Annotated[float, Field(ge=0)] = 0.125  # weight of the size term; the paper's beta
    tag: str | None = None  # the tag of the answer, `<tag>...</tag>`; null: anywhere in the text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hit_weight + self.iou_weight + self.size_weight == 0:
            raise ValueError("hit_weight, iou_weight and size_weight must not all be 0")

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no box."""
        target_box(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no box, or a prompt without an image.
        """
        answered, target = answered_boxes(batch, self.tag), target_boxes(batch)
        sizes = [canvas_of(batch, row).original for row in range(len(batch))]
        size = torch.tensor(sizes, dtype=torch.float64).view(-1, 2)
        is_box = has_area(answered)
        safe = torch.where(is_box[:, None], answered, target)
        centre = (safe[:, :2] + safe[:, 2:]) / 2
        hit = ((target[:, :2] <= centre) & (centre <= target[:, 2:])).all(1).double()
        iou = box_overlap(safe, target, "iou")
        total = self.hit_weight + self.iou_weight + self.size_weight
        value = self.hit_weight * hit + self.iou_weight * iou + self.size_weight * size_term(safe, target, size)
        return torch.where(is_box, value / total, 0.0).float()


def size_term(boxes: Tensor, targets: Tensor, size: Tensor) -> Tensor:
    """Returns the harmonic mean [B] in [0, 1] of how near the sides of boxes [B, 4] are to those of targets [B, 4].

    Args:
        size: [B, 2] width and height of the images.
    """
    near = 1 - (boxes - targets).abs() / size.repeat(1, 2)  # below 0 is as bad as 0
    return torch.where((near > 0).all(1), 4 / (1 / near).sum(1), 0.0)
