"""Boxes as numbers: area, overlap, and which answered box is matched with which true box.

Maths: docs/maths/rewards.md#boxes
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mmrl.parsing.coordinates import Box

BoxKind = Literal["iou", "giou", "diou", "ciou"]


def has_area(boxes: Tensor) -> Tensor:
    """Returns [...] bool: whether x1 < x2 and y1 < y2 hold of boxes [..., 4]."""
    return (boxes[..., :2] < boxes[..., 2:]).all(-1)


def box_overlap(boxes: Tensor, others: Tensor, kind: BoxKind) -> Tensor:
    """Returns the overlap [...] of boxes [..., 4] and [..., 4], x1, y1, x2, y2, all with an area; shapes are broadcast.

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


def box_overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Returns the IoU [n, m] of boxes [n, 4] and [m, 4]; 0 for a box without area or with corners in wrong order."""
    is_pair = has_area(boxes)[:, None] & has_area(others)
    return torch.where(is_pair, box_overlap(boxes[:, None], others, "iou"), 0.0)


def pairs_by_confidence(overlap: Tensor, confidence: Tensor) -> list[tuple[int, int]]:
    """Returns pairs (prediction, truth): by falling confidence each prediction takes the free truth of largest overlap.

    Liu et al. 2025 (Visual-RFT, arXiv 2503.01785, section 3.2). Of equal confidences the larger overlap comes first.

    Args:
        overlap: [n, m], 0 where the two may not be a pair. confidence: [n].
    """
    free, pairs = overlap.clone(), []
    best = overlap.amax(1).tolist() if overlap.numel() else []
    for row in sorted(range(len(best)), key=lambda row: (-float(confidence[row]), -best[row])):
        column = int(free[row].argmax())
        if free[row, column] > 0:
            pairs.append((row, column))
            free[:, column] = 0
    return pairs


def pairs_by_overlap(overlap: Tensor) -> list[tuple[int, int]]:
    """Returns the pairs (prediction, truth) with the largest sum of overlaps [n, m].

    The Hungarian method (Kuhn 1955).
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(overlap.numpy(), maximize=True)
    return [
        (row, column) for row, column in zip(rows.tolist(), columns.tolist(), strict=True) if overlap[row, column] > 0
    ]


def are_new(answered: Sequence[Box], true: Sequence[Box]) -> list[bool]:
    """Returns for each answered box whether it is no repetition of an earlier one, and so may match a true box.

    Where a true box stands k times (one place with two labels), the first k of an answered one are new.
    """
    copies = max(Counter(true).values(), default=1)
    before: Counter[Box] = Counter()
    new = []
    for box in answered:
        new.append(before[box] < copies)
        before[box] += 1
    return new
