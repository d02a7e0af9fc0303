"""How many boxes does an answer have, beside how many there are? A monitor of detection."""

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError

from ..base.answers import TagReward
from ..base.detections import read_detections
from ..base.grounding import canvas_of, target_detections

Measure = Literal["agreement", "answered", "true", "surplus"]


@dataclass(frozen=True)
class BoxCount(TagReward):
    """The number n of answered boxes beside that of `target.boxes`, m:

      agreement  min(n, m) / max(n, m), 1 where both are 0 (the count match of GRIT, Fan et al. 2025, arXiv 2505.15879,
                 is 1 for n = m only); it does not ask where the boxes are
      answered   n
      true       m
      surplus    n - m
    All but the first are numbers to look at: with weight 0 they stand in the metrics and teach nothing. Shen et al.
    2025 (VLM-R1, arXiv 2504.07615, section 4) see by them that a model rewarded by average precision learns to write
    too many boxes.

    The answer is a list of detections as `detection` reads it, a box that is written twice counts twice. A text without
    such a list has no boxes: agreement 0, unless there are none in truth, where only a list that is empty agrees.
    """

    source: ClassVar[str] = "Shen et al. 2025 (VLM-R1), arXiv 2504.07615; Fan et al. 2025 (GRIT), arXiv 2505.15879"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)  # of `agreement`; infinite for the others
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.boxes"})
    batch_size: ClassVar[int | None] = None

    measure: Measure = "agreement"  # which number
    tag: str | None = "answer"  # the tag of the answer, `<tag>...</tag>`; null: the whole text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measure != "agreement":
            object.__setattr__(self, "range", (-inf if self.measure == "surplus" else 0.0, inf))

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no list of boxes."""
        target_detections(prompt, False)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for targets that are no boxes, or a prompt without an image.
        """
        assert batch.outputs.texts is not None, "scoring checks needs"
        scores = []
        for row, text in enumerate(batch.outputs.texts):
            true = len(target_detections(batch.prompts[row], False)[0])
            try:
                answered = len(read_detections(text, self.tag, canvas_of(batch, row), true))
                is_list = True
            except ParseError:
                answered, is_list = 0, False
            scores.append(self._measured(answered, true, is_list))
        return torch.tensor(scores, dtype=torch.float32)

    def _measured(self, answered: int, true: int, is_list: bool) -> float:
        if self.measure == "agreement":
            return min(answered, true) / max(answered, true) if answered or true else float(is_list)
        return float({"answered": answered, "true": true, "surplus": answered - true}[self.measure])
