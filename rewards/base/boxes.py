"""Boxes as numbers: whether they have an area, and how much two of them overlap.

Maths: docs/maths/rewards.md#boxes
"""

import math
from typing import Literal

import torch
from torch import Tensor

BoxKind = Literal["iou", "giou", "diou", "ciou"]


def has_area(boxes: Tensor) -> Tensor:
    """[...] bool: x1 < x2 and y1 < y2 of boxes [..., 4]."""
    return (boxes[..., :2] < boxes[..., 2:]).all(-1)


def box_overlap(boxes: Tensor, others: Tensor, kind: BoxKind) -> Tensor:
    """[...] overlap of boxes [..., 4] and [..., 4], x1, y1, x2, y2, all of them with an area; shapes are broadcast.

    IoU is in [0, 1], GIoU and DIoU in (-1, 1], CIoU in (-1.5, 1]; formulas and sources at `BoxIou`.
    """
    size, other_size = boxes[..., 2:] - boxes[..., :2], others[..., 2:] - others[..., :2]  # [..., 2]
    low, high = torch.maximum(boxes[..., :2], others[..., :2]), torch.minimum(boxes[..., 2:], others[..., 2:])
    meet = (high - low).clamp(min=0)
    hull = torch.maximum(boxes[..., 2:], others[..., 2:]) - torch.minimum(boxes[..., :2], others[..., :2])  # [..., 2]
    union = size.prod(-1) + other_size.prod(-1) - meet.prod(-1)
    iou = meet.prod(-1) / union
    if kind == "iou":
        return iou
    if kind == "giou":
        return iou - (hull.prod(-1) - union) / hull.prod(-1)
    apart = (boxes[..., :2] + boxes[..., 2:] - others[..., :2] - others[..., 2:]) / 2  # [..., 2]
    diou = iou - apart.square().sum(-1) / hull.square().sum(-1)
    if kind == "diou":
        return diou
    angle = torch.atan(other_size[..., 0] / other_size[..., 1]) - torch.atan(size[..., 0] / size[..., 1])
    shape = 4 / math.pi**2 * angle.square()
    return diou - torch.where(shape > 0, shape.square() / (1 - iou + shape), 0.0)  # equal boxes: 0 / 0
