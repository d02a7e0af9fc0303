"""Does the answered box hit the target, cover it, and have its size? GUI-G1."""

from dataclasses import dataclass
from math import inf, sqrt
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward, is_number
from ..base.boxes import box_overlap, has_area
from ..base.grounding import answered_boxes, canvas_of, target_box, target_boxes

Difficulty = Literal["none", "row", "area"]


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

    The paper also weighs a prompt's part of the objective by its difficulty, which small targets have. A factor of the
    reward does that where the advantage is the reward minus the mean of the group (`dr_grpo`), as in the paper's code:
      row   `target.rate`, which the paper's files hold for each row
      area  sqrt(`typical_area` / share of the image that the target takes), between 1 / `most` and `most`; ours

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
    difficulty: Difficulty = "none"  # by what the score of a prompt is multiplied: nothing, its row's rate, its area
    typical_area: Annotated[float, Field(gt=0, lt=1)] = 0.002  # of `area`: share of the image with a factor of 1
    most: Annotated[float, Field(ge=1)] = 2.0  # of `area`: the largest factor, and one over the smallest
    tag: str | None = None  # the tag of the answer, `<tag>...</tag>`; null: anywhere in the text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hit_weight + self.iou_weight + self.size_weight == 0:
            raise ValueError("hit_weight, iou_weight and size_weight must not all be 0")
        if self.difficulty == "row":
            object.__setattr__(self, "range", (0.0, inf))
            object.__setattr__(self, "needs", self.needs | {"target.rate"})
        elif self.difficulty == "area":
            object.__setattr__(self, "range", (0.0, float(self.most)))

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no box, or has no rate that the difficulty needs."""
        target_box(prompt)
        self._factor(prompt, (1, 1))

    def _factor(self, prompt: Prompt, size: tuple[int, int]) -> float:
        """Returns the factor of a prompt's scores; `size` is that of its image, (width, height)."""
        if self.difficulty == "none":
            return 1.0
        if self.difficulty == "row":
            rate = prompt.target["rate"]
            if not is_number(rate) or rate < 0:
                raise ValueError(f"target.rate must be a number of at least 0, got {rate!r} for {prompt.text!r}")
            return float(rate)
        x1, y1, x2, y2 = target_box(prompt)
        share = (x2 - x1) * (y2 - y1) / (size[0] * size[1])
        return min(max(sqrt(self.typical_area / share), 1 / self.most), self.most)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that `check` refuses, or a prompt without an image.
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
        pairs = zip(batch.prompts, sizes, strict=True)
        factor = torch.tensor([self._factor(prompt, one) for prompt, one in pairs], dtype=torch.float64)
        return torch.where(is_box, factor * value / total, 0.0).float()


def size_term(boxes: Tensor, targets: Tensor, size: Tensor) -> Tensor:
    """Returns the harmonic mean [B] in [0, 1] of how near the sides of boxes [B, 4] are to those of targets [B, 4].

    Args:
        size: [B, 2] width and height of the images.
    """
    near = 1 - (boxes - targets).abs() / size.repeat(1, 2)  # below 0 is as bad as 0
    return torch.where((near > 0).all(1), 4 / (1 / near).sum(1), 0.0)
