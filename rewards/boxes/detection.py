"""Did the answer find all objects, with boxes that fit? The rewards of Visual-RFT, Vision-R1 and VLM-R1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Box

from ..base.answers import TagReward
from ..base.boxes import are_new
from ..base.detection_scores import (
    COCO_THRESHOLDS,
    Compared,
    Matching,
    compare,
    mean_average_precision,
    vision_r1,
    visual_rft,
)
from ..base.detections import DetectedBox, read_detections
from ..base.grounding import canvas_of, target_detections

Kind = Literal["visual_rft", "vision_r1", "map", "map50", "map_length"]
Form = Literal["paper", "guarded"]


@dataclass(frozen=True)
class Detection(TagReward):
    """How well the answered list of boxes is that of `target.boxes`, in [0, 1]; n answered, m true.

    `visual_rft` (Liu et al. 2025, arXiv 2503.01785, section 3.2) is the weighted mean of two parts. Answered boxes that
    overlap a true one by an IoU above `threshold` are matched with it, one with one: each by falling confidence with
    the best that is free (`confidence`, the paper's), or so that the sum of IoUs is largest (`hungarian`).
      overlap     sum of IoU over the pairs / max(n, m)
      confidence  the mean over the answered boxes of c (matched) or 1 - c (not matched)
    The paper adds the two (and a format term): that is this reward with weight 2. As in its code a box that is written
    again is left out. Boxes far from everything with confidence 0 raise the mean: with `form: guarded` a box that
    matches nothing, or that is written again, never raises the score. The same slopes then start from 0,
      confidence  max(0, sum of c over the pairs - sum of c over the other answered boxes) / max(n, m)
    and a box that is written again is one that is wrong. One place with k true boxes, such as one for each of its
    labels, may be written k times. Of equal confidences the larger overlap takes its box first, in the paper's code the
    box that is written first.

    `vision_r1` (Zhan et al. 2025, arXiv 2503.18013) is (w + recall + precision) / (w + 2), w =
    `format_weight` for a list that can be read. Boxes are matched so that the sum of IoUs is largest; then, with
    q(x; a, b) = 0 below a, 1 above b, x between, and from iteration `strict_from` on with the numbers in brackets,
      recall      q(pairs with an IoU of at least 0.5 [0.75] / m; 0.5, 0.75)
      precision   sum over the pairs of q(IoU; 0.5, 0.75 [0.75, 0.9]) / n
    The paper's code takes GIoU for IoU, matches by distances in pixels, and first divided by the number of pairs: two
    boxes of which one is far from the only truth had a precision of 1, here 1/2.

    `map` and `map50` (Shen et al. 2025, VLM-R1, arXiv 2504.07615) are COCO's average precision of one image over IoUs
    of 0.5, 0.55 ... 0.95, or at 0.5; with `labels` its mean over labels. Confidences that are not written are 1, and
    equal ones are one step of the curve: in the paper's code they count in their order, so that any number of wrong
    boxes behind a right one is free (1.0 for one right and 9 wrong, here 0.1). Labels that are not in the truth have a
    precision of 0 here; there they are left out. As in COCO, wrong boxes that are less sure than all right ones cost
    nothing: a model may guess on with small confidences. `map_length` makes them cost; it is `map` in the order
    written, as theirs (odLength), times min(1, m / n).

    No boxes for no objects scores 1; boxes for none, and none for some, 0 (the latter earns its format in `vision_r1`).
    So does an answer that is not one list of detections in its `tag` (None: the whole text). With `labels` a pair needs
    the same label too, but for capitals (`target.labels`).
    """

    source: ClassVar[str] = "Liu et al. 2025 (Visual-RFT), arXiv 2503.01785"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.boxes"})
    batch_size: ClassVar[int | None] = None

    kind: Kind = "visual_rft"
    overlap_weight: float = 1.0  # of visual_rft, at least 0
    confidence_weight: float = 1.0  # of visual_rft, at least 0
    threshold: float = 0.5  # of visual_rft, in [0, 1)
    matching: Matching = "confidence"  # of visual_rft
    form: Form = "paper"  # of visual_rft: guarded, so that boxes of nothing never pay
    format_weight: float = 1.0  # of vision_r1, at least 0
    strict_from: int | None = 1500  # of vision_r1: the iteration of its code; None: never
    labels: bool = False
    tag: str | None = "answer"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, choices in (
            ("kind", self.kind, get_args(Kind)),
            ("matching", self.matching, get_args(Matching)),
            ("form", self.form, get_args(Form)),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold must be in [0, 1), got {self.threshold}")
        if min(self.overlap_weight, self.confidence_weight) < 0 or self.overlap_weight + self.confidence_weight == 0:
            raise ValueError(
                f"overlap_weight and confidence_weight must be at least 0 and not both 0, "
                f"got {self.overlap_weight} and {self.confidence_weight}"
            )
        if self.format_weight < 0 or (self.strict_from is not None and self.strict_from < 0):
            raise ValueError(
                f"format_weight and strict_from must be at least 0, got {self.format_weight} and {self.strict_from}"
            )
        if self.labels:
            object.__setattr__(self, "needs", self.needs | {"target.labels"})

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no list of boxes, or lacks a label for each."""
        target_detections(prompt, self.labels)

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for targets that are no boxes (or labels), or a prompt without an image."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        is_strict = self.strict_from is not None and batch.iteration >= self.strict_from
        scores = []
        for row, text in enumerate(batch.outputs.texts):
            boxes, labels = target_detections(batch.prompts[row], self.labels)
            canvas = canvas_of(batch, row)
            try:
                found = self._counted(read_detections(text, self.tag, canvas, len(boxes)), boxes)
            except ParseError:
                scores.append(0.0)
                continue
            if found and boxes:
                compared = compare(found, boxes, labels, is_ordered=self.kind == "map_length")
                scores.append(self._judge(compared, is_strict))
            elif self.kind == "vision_r1" and boxes:
                scores.append(self._with_format(0.0, 0.0))
            else:
                scores.append(float(not found and not boxes))
        return torch.tensor(scores, dtype=torch.float32)

    def _counted(self, found: list[DetectedBox], boxes: Sequence[Box]) -> list[DetectedBox]:
        """The boxes that are judged: those written again are left out where the paper's code does so."""
        if self.kind != "visual_rft" or self.form != "paper":
            return found
        is_new = are_new([one.box for one in found], boxes)
        return [one for one, new in zip(found, is_new, strict=True) if new]

    def _judge(self, compared: Compared, is_strict: bool) -> float:
        if self.kind == "visual_rft":
            overlap, confidence = visual_rft(compared, self.threshold, self.matching, is_guarded=self.form == "guarded")
            total = self.overlap_weight + self.confidence_weight
            return (self.overlap_weight * overlap + self.confidence_weight * confidence) / total
        if self.kind == "vision_r1":
            return self._with_format(*vision_r1(compared, is_strict))
        thresholds = (0.5,) if self.kind == "map50" else COCO_THRESHOLDS
        value = mean_average_precision(compared, thresholds, is_ordered=self.kind == "map_length")
        num_answered, num_true = compared.overlap.shape
        return value * min(1.0, num_true / num_answered) if self.kind == "map_length" else value

    def _with_format(self, recall: float, precision: float) -> float:
        return (self.format_weight + recall + precision) / (self.format_weight + 2)
