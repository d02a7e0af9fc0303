"""The quality of a list of detections: the rewards of Visual-RFT, Vision-R1 and VLM-R1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
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
    """The quality of an answered list of boxes against `target.boxes`, in [0, 1]; n boxes answered, m true ones.

    `visual_rft` (Liu et al. 2025, arXiv 2503.01785, section 3.2) is the weighted mean of two parts. Answered boxes that
    overlap a true one by an IoU above `threshold` are matched with true boxes, one to one: each by falling confidence
    with the best that is free (`confidence`, the paper's), or so that the sum of IoUs is largest (`hungarian`).
      overlap     sum of IoU over the pairs / max(n, m)
      confidence  the mean over the answered boxes of c (matched) or 1 - c (not matched)
    The paper adds the two parts and a format term: weight 2 of this reward. As in its code a repeated box is left out.
    Boxes far from everything with confidence 0 raise the mean: with `form: guarded` a box that matches nothing, or is
    repeated, never raises the score. The confidence then starts from 0,
      confidence  max(0, sum of c over the pairs - sum of c over the other answered boxes) / max(n, m)
    and a repeated box is a wrong one. One place with k true boxes, such as one for each of its labels, may be written k
    times. Of equal confidences the larger overlap is matched first, in the paper's code the box that is written first.

    `vision_r1` (Zhan et al. 2025, arXiv 2503.18013) is (w + recall + precision) / (w + 2), w = `format_weight` for a
    list that can be read. Boxes are matched so that the sum of IoUs is largest; then, with q(x; a, b) = 0 below a, 1
    above b, x between, and from iteration `strict_from` on with the numbers in brackets,
      recall      q(pairs with an IoU of at least 0.5 [0.75] / m; 0.5, 0.75)
      precision   sum over the pairs of q(IoU; 0.5, 0.75 [0.75, 0.9]) / n
    The paper's code takes GIoU for IoU, matches by distances in pixels, and first divided by the number of pairs: two
    boxes of which one is far from the only truth had a precision of 1, here 1/2.

    `map` and `map50` (Shen et al. 2025, VLM-R1, arXiv 2504.07615) are COCO's average precision of one image over IoUs
    of 0.5, 0.55 ... 0.95, or at 0.5; with `labels` its mean over labels. Confidences that are not written are 1, and
    equal confidences are one step of the curve: in the paper's code they count in their order, so that any number of
    wrong boxes behind a right one is free (1.0 for one right and 9 wrong, here 0.1). Labels that are not in the truth
    have a precision of 0 here; there they are left out. As in COCO, wrong boxes that are less sure than all right ones
    cost nothing: a model may guess on with small confidences. `map_length` makes them cost: it is `map` in the order
    written, like VLM-R1's odLength, times min(1, m / n).

    No boxes for no objects scores 1. Boxes for no objects, and no boxes for some, score 0 (the latter earns its format
    in `vision_r1`). An answer that is not one list of detections in its `tag` (None: the whole text) scores 0. With
    `labels` a pair also needs the same label, capitals apart (`target.labels`).
    """

    source: ClassVar[str] = "Liu et al. 2025 (Visual-RFT), arXiv 2503.01785"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.boxes"})
    batch_size: ClassVar[int | None] = None

    kind: Kind = "visual_rft"  # the paper's score
    overlap_weight: Annotated[float, Field(ge=0)] = 1.0  # of visual_rft: weight of the overlap
    confidence_weight: Annotated[float, Field(ge=0)] = 1.0  # of visual_rft: weight of the confidence
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.5  # of visual_rft: IoU above which boxes may be matched
    matching: Matching = "confidence"  # of visual_rft: by falling confidence, or the largest sum of IoUs
    form: Form = "paper"  # of visual_rft: the paper's, or guarded, so that boxes of nothing never pay
    format_weight: Annotated[float, Field(ge=0)] = 1.0  # of vision_r1: weight of a list that can be read
    # of vision_r1: the iteration from which the strict thresholds hold; null: never
    strict_from: Annotated[int, Field(ge=0)] | None = 1500
    labels: bool = False  # whether labels must agree with `target.labels`
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlap_weight + self.confidence_weight == 0:
            raise ValueError("overlap_weight and confidence_weight must not both be 0")
        if self.labels:
            object.__setattr__(self, "needs", self.needs | {"target.labels"})

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no list of boxes, or lacks a label for each."""
        target_detections(prompt, self.labels)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for targets that are no boxes (or labels), or a prompt without an image.
        """
        assert batch.outputs.texts is not None, "scoring checks needs"
        is_strict = self.strict_from is not None and batch.iteration >= self.strict_from
        scores = []
        for row, text in enumerate(batch.outputs.texts):
            boxes, labels = target_detections(batch.prompts[row], self.labels)
            canvas = canvas_of(batch, row)
            try:
                answered = self._counted(read_detections(text, self.tag, canvas, len(boxes)), boxes)
            except ParseError:
                scores.append(0.0)
                continue
            if answered and boxes:
                compared = compare(answered, boxes, labels, is_ordered=self.kind == "map_length")
                scores.append(self._judge(compared, is_strict))
            elif self.kind == "vision_r1" and boxes:
                scores.append(self._with_format(0.0, 0.0))
            else:
                scores.append(float(not answered and not boxes))
        return torch.tensor(scores, dtype=torch.float32)

    def _counted(self, answered: list[DetectedBox], boxes: Sequence[Box]) -> list[DetectedBox]:
        """Returns the boxes that are judged; repeated ones are left out where the paper's code does so."""
        if self.kind != "visual_rft" or self.form != "paper":
            return answered
        is_new = are_new([one.box for one in answered], boxes)
        return [one for one, new in zip(answered, is_new, strict=True) if new]

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
