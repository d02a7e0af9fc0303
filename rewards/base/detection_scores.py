"""The formulas of the detection rewards, on the overlaps of n answered boxes with m true ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mmrl.parsing.coordinates import Box

from .boxes import are_new, box_overlaps, pairs_by_confidence, pairs_by_overlap
from .detections import DetectedBox

Matching = Literal["confidence", "hungarian"]
COCO_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
_RECALLS = torch.from_numpy(np.linspace(0.0, 1.0, 101))  # numpy's, whose last digits pycocotools compares with
# Vision-R1's code, stage by stage: what overlap is worth 0 below and 1 above, and from which one a truth is found.
_STAGES = (((0.5, 0.75), 0.5), ((0.75, 0.9), 0.75))
_RECALL_ENDS = (0.5, 0.75)


@dataclass(frozen=True)
class Compared:
    """The overlaps, confidences and labels of n answered boxes, compared with m true ones."""

    overlap: Tensor  # [n, m] float64 IoU; 0 for a box that was written before, and for other labels
    confidence: Tensor  # [n] float64
    labels: tuple[str | None, ...]  # n, plain; None: no label, or labels do not count
    true_labels: tuple[str | None, ...]  # m


def compare(
    detections: Sequence[DetectedBox], boxes: Sequence[Box], labels: Sequence[str] | None, *, is_ordered: bool
) -> Compared:
    """Compares answered boxes with true ones, in their order with `is_ordered`, else in an order by their numbers.

    A box that is written again overlaps nothing, so that it is one that is wrong.
    """
    is_new = are_new([one.box for one in detections], boxes)
    order = list(range(len(detections)))
    if not is_ordered:
        order.sort(key=lambda row: (detections[row].box, row))
    answered = torch.tensor([detections[row].box for row in order], dtype=torch.float64).view(-1, 4)
    overlap = box_overlaps(answered, torch.tensor(boxes, dtype=torch.float64).view(-1, 4))
    overlap = overlap * torch.tensor([is_new[row] for row in order], dtype=torch.float64).view(-1, 1)
    answered_labels: tuple[str | None, ...] = (None,) * len(detections)
    true_labels: tuple[str | None, ...] = (None,) * len(boxes)
    if labels is not None:
        answered_labels = tuple(None if (name := detections[row].label) is None else _plain(name) for row in order)
        true_labels = tuple(map(_plain, labels))
        same = [[one == other for other in true_labels] for one in answered_labels]
        overlap = overlap * torch.tensor(same, dtype=torch.float64).view(overlap.shape)
    confidence = torch.tensor([detections[row].confidence for row in order], dtype=torch.float64)
    return Compared(overlap, confidence, answered_labels, true_labels)


def visual_rft(compared: Compared, threshold: float, matching: Matching, *, is_guarded: bool) -> tuple[float, float]:
    """Returns overlap and confidence, each in [0, 1], of at least one box on both sides; formulas at `Detection`."""
    overlap = torch.where(compared.overlap > threshold, compared.overlap, 0.0)
    confidence = compared.confidence
    pairs = pairs_by_confidence(overlap, confidence) if matching == "confidence" else pairs_by_overlap(overlap)
    num_answered, most = len(overlap), max(overlap.shape)
    sure = sum(float(confidence[row]) for row, _ in pairs)
    margin = 2 * sure - float(confidence.sum())  # of the matched boxes over the others
    calibrated = max(0.0, margin) / most if is_guarded else (margin + num_answered - len(pairs)) / num_answered
    return sum(float(overlap[pair]) for pair in pairs) / most, calibrated


def vision_r1(compared: Compared, is_strict: bool) -> tuple[float, float]:
    """Returns recall and precision, each in [0, 1], by the rules of one stage; formulas and source at `Detection`."""
    num_answered, num_true = compared.overlap.shape
    if not num_answered or not num_true:
        return 0.0, 0.0
    ends, found_from = _STAGES[is_strict]
    values = [float(compared.overlap[pair]) for pair in pairs_by_overlap(compared.overlap)]
    recall = sum(value >= found_from for value in values) / num_true
    return _stretched(recall, *_RECALL_ENDS), sum(_stretched(value, *ends) for value in values) / num_answered


def _stretched(value: float, low: float, high: float) -> float:
    """Returns 0 below low, 1 above high, and the value itself between."""
    return 0.0 if value < low else 1.0 if value > high else value


def mean_average_precision(compared: Compared, thresholds: Sequence[float], *, is_ordered: bool) -> float:
    """Returns the mean of `average_precision` over the labels of truth and answer.

    A label that is not in the truth counts 0.
    """
    labels = set(compared.labels) | set(compared.true_labels)
    total = 0.0
    for label in sorted(labels, key=str):
        rows = [row for row, name in enumerate(compared.labels) if name == label]
        columns = [column for column, name in enumerate(compared.true_labels) if name == label]
        part = compared.overlap[rows][:, columns]
        total += average_precision(part, compared.confidence[rows], thresholds, is_ordered=is_ordered)
    return total / len(labels)


def average_precision(overlap: Tensor, confidence: Tensor, thresholds: Sequence[float], *, is_ordered: bool) -> float:
    """Returns COCO's average precision of one image and label, in [0, 1]: the mean over IoUs and 101 recalls.

    By falling confidence each box takes the free truth that it overlaps most, by at least the threshold. The precision
    at a recall is the best that is reached at that recall or above. Equal confidences are one step of that curve,
    unless they count in their order (`is_ordered`, as in pycocotools).

    Args:
        overlap: [n, m] IoU. confidence: [n].
    """
    if not overlap.numel():
        return 0.0
    best = overlap.amax(1).tolist()
    sure = confidence.tolist()
    order = sorted(range(len(sure)), key=lambda row: (-sure[row], 0 if is_ordered else -best[row]))
    hits = _hits(overlap[order], torch.tensor(thresholds, dtype=torch.float64))  # [T, n]
    right = hits.cumsum(1)
    recall, precision = right / overlap.shape[1], right / torch.arange(1, len(order) + 1)
    if not is_ordered:
        ranked = confidence[order]
        is_last = torch.cat([ranked[1:] != ranked[:-1], torch.tensor([True])])
        recall, precision = recall[:, is_last], precision[:, is_last]
    ceiling = precision.flip(1).cummax(1).values.flip(1)
    places = torch.searchsorted(recall.contiguous(), _RECALLS.expand(len(recall), -1).contiguous())
    reached = torch.cat([ceiling, torch.zeros(len(recall), 1, dtype=torch.float64)], 1)
    return float(reached.gather(1, places).mean())


def _hits(overlap: Tensor, thresholds: Tensor) -> Tensor:
    """Returns [T, n] float64, 1 where a box, in this order, takes a true one; overlap [n, m], thresholds [T]."""
    free = torch.ones(len(thresholds), overlap.shape[1], dtype=torch.bool)
    hits = torch.zeros(len(thresholds), len(overlap), dtype=torch.float64)
    every = torch.arange(len(thresholds))
    for row in (overlap.amax(1) >= thresholds.min()).nonzero()[:, 0].tolist():
        value, from_end = torch.where(free, overlap[row], -1.0).flip(1).max(1)  # [T]; of equal ones the last, as theirs
        is_hit = value >= thresholds
        free[every[is_hit], free.shape[1] - 1 - from_end[is_hit]] = False
        hits[is_hit, row] = 1
    return hits


def _plain(label: str) -> str:
    return " ".join(label.split()).casefold()
