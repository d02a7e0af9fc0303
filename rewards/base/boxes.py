"""Boxes as numbers: area, overlap, and which answered box is matched with which true box.

Maths: docs/maths/rewards.md#boxes
"""

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
    from torchvision import ops

    pairs = boxes[..., None, :], others[..., None, :]  # [..., 1, 4] each
    overlap: Tensor
    if kind == "ciou":  # of equal boxes torchvision divides 0 by eps; its own eps would move all other values
        overlap = ops.complete_box_iou(*pairs, eps=torch.finfo(boxes.dtype).tiny)
    elif kind == "diou":
        overlap = ops.distance_box_iou(*pairs, eps=0)
    else:
        overlap = ops.box_iou(*pairs) if kind == "iou" else ops.generalized_box_iou(*pairs)
    return overlap[..., 0, 0]


def box_overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Returns the IoU [n, m] of boxes [n, 4] and [m, 4]; 0 for a box without area or with corners in wrong order."""
    from torchvision.ops import box_iou

    return torch.where(has_area(boxes)[:, None] & has_area(others), box_iou(boxes, others), 0.0)


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
