"""Did the answer find all objects, with boxes that fit and confidences that know? Visual-RFT's detection reward."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from mmrl.answers import ParseError, check_tag
from mmrl.contracts import Granularity, RewardBatch
from mmrl.coordinates import Box, Canvas
from mmrl.rewards._detections import (
    DetectedBox,
    box_overlaps,
    pairs_by_confidence,
    pairs_by_overlap,
    read_detections,
)
from mmrl.rewards._places import canvas_of, target_detections

Matching = Literal["confidence", "hungarian"]


@dataclass(frozen=True)
class Detection:
    """Weighted mean of two parts, each in [0, 1] and 1 for the true boxes with full confidence.

    Liu et al. 2025 (Visual-RFT, arXiv 2503.01785, section 3.2). Answered boxes that overlap a true one by an IoU above
    `threshold` are matched with it, one with one: each by falling confidence with the best that is free (`confidence`,
    the paper's), or so that the sum of IoUs is largest (`hungarian`). With n answered and m true:
      overlap     sum of IoU over the pairs / max(n, m)
      confidence  max(0, sum of c over the pairs - sum of c over the other answered boxes) / max(n, m)
    The paper adds the two (and a format term): that is this reward with weight 2. Its confidence part is the mean of c
    (matched) and 1 - c (not matched), so that boxes far from everything with confidence 0 raise it; here the same
    slopes start from 0. A box that matches nothing, or that is written again, never raises the score.

    No boxes for no objects scores 1; boxes for none, and none for some, 0. So does an answer that is not one list of
    detections in its `tag` (None: the whole text). With `labels` a pair needs the same label too, but for capitals.
    """

    source: ClassVar[str] = "Liu et al. 2025 (Visual-RFT), arXiv 2503.01785"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.boxes"})
    batch_size: ClassVar[int | None] = None

    overlap_weight: float = 1.0  # at least 0
    confidence_weight: float = 1.0  # at least 0
    threshold: float = 0.5  # in [0, 1)
    matching: Matching = "confidence"
    labels: bool = False
    tag: str | None = "answer"

    def __post_init__(self) -> None:
        check_tag(self.tag)
        if self.matching not in get_args(Matching):
            raise ValueError(f"matching must be one of {', '.join(get_args(Matching))}, got {self.matching!r}")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold must be in [0, 1), got {self.threshold}")
        if min(self.overlap_weight, self.confidence_weight) < 0 or self.overlap_weight + self.confidence_weight == 0:
            raise ValueError(
                f"overlap_weight and confidence_weight must be at least 0 and not both 0, "
                f"got {self.overlap_weight} and {self.confidence_weight}"
            )

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for targets that are no boxes (or labels), or a prompt without an image."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        scores = []
        for row, text in enumerate(batch.outputs.texts):
            boxes, labels = target_detections(batch.prompts[row], self.labels)
            scores.append(self._judge(text, canvas_of(batch, row), boxes, labels))
        return torch.tensor(scores, dtype=torch.float32)

    def _judge(self, text: str, canvas: Canvas, boxes: list[Box], labels: list[str] | None) -> float:
        try:
            found = read_detections(text, self.tag, canvas)
        except ParseError:
            return 0.0
        most = max(len(found), len(boxes))
        if most == 0:
            return 1.0
        overlap, confidence = self._parts(found, boxes, labels)
        total = self.overlap_weight + self.confidence_weight
        return (self.overlap_weight * overlap + self.confidence_weight * max(0.0, confidence)) / (most * total)

    def _parts(self, found: list[DetectedBox], boxes: list[Box], labels: list[str] | None) -> tuple[float, float]:
        """Sum of IoU over the pairs; sum of confidences over the pairs less that of the other boxes."""
        distinct = {one.box: one for one in reversed(found)}  # the first of those with the same box
        first = sorted(distinct.values(), key=lambda one: one.box)  # ties do not depend on the order of the answer
        answered = torch.tensor([one.box for one in first], dtype=torch.float64).view(-1, 4)
        overlap = box_overlaps(answered, torch.tensor(boxes, dtype=torch.float64).view(-1, 4))
        overlap = torch.where(overlap > self.threshold, overlap, 0.0)
        if labels is not None:
            said = [None if one.label is None else _plain(one.label) for one in first]
            same = [[name == _plain(label) for label in labels] for name in said]
            overlap = overlap * torch.tensor(same, dtype=torch.float64).view(overlap.shape)
        confidence = torch.tensor([one.confidence for one in first], dtype=torch.float64)
        pairs = pairs_by_confidence(overlap, confidence) if self.matching == "confidence" else pairs_by_overlap(overlap)
        sure = sum(float(confidence[row]) for row, _ in pairs)
        return sum(float(overlap[pair]) for pair in pairs), 2 * sure - sum(one.confidence for one in found)


def _plain(label: str) -> str:
    return " ".join(label.split()).casefold()
