"""Does the thought point at the image with boxes, as many as there are objects? (GRIT)"""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError, check_tags, tagged
from mmrl.parsing.coordinates import Box

from ..base.answers import is_number

MAX_BOXES = 100  # of one thought

_NUMBER = r"[0-9]{1,12}+(?:\.[0-9]{0,20}+)?+"
_COMMA = r"[ \t]*+,[ \t]*+"
_FOUR = re.compile(rf"(?<![\w.,+-])(?<![,+-] ){_NUMBER}(?:{_COMMA}{_NUMBER}){{3}}+(?![\w.]|{_COMMA}[0-9])")


@dataclass(frozen=True)
class GroundedBoxes(Checked):
    """The weighted mean of three parts of a text `<think>...</think><rethink>...</rethink>...`, each 0 or 1:

      tags   both tags there, once, in this order, with something in them
      boxes  at least one box in the first (no box, where `target.count` is 0)
      count  exactly `target.count` different boxes in the first

    A box is four numbers with commas between, x1, y1, x2, y2 with x1 < x2 and y1 < y2, with or without brackets or a
    key ("bbox_2d": [1, 2, 30, 40]). Fan et al. 2025, "GRIT", arXiv 2505.15879, whose code gives up to 0.5 for the tags,
    0.5 for a box and 1 for the count, the weights here. The count is for questions of counting; with `count_weight` 0
    no target is needed. The answer itself is judged by another reward. Where the boxes lie does not matter, as in the
    paper.

    Without the two tags the score is 0, since the thought cannot be found. The code of GRIT differs: it pays for each
    tag alone, and counts any four numbers with commas, those that are no box among them, and the same box again:
    "1,2,3,4" written three times is three boxes there, one here. More than 100 boxes count as none.
    """

    source: ClassVar[str] = "Fan et al. 2025 (GRIT), arXiv 2505.15879"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "target.count"})  # no target with count_weight 0
    batch_size: ClassVar[int | None] = None

    tag_weight: Annotated[float, Field(ge=0)] = 0.5  # weight of the tags
    box_weight: Annotated[float, Field(ge=0)] = 0.5  # weight of having boxes
    # weight of the right number of boxes; with 0 no `target.count` is needed
    count_weight: Annotated[float, Field(ge=0)] = 1.0
    tags: tuple[str, ...] = ("think", "rethink")  # the tags of thought and second thought

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tags(self.tags)
        weights = self.tag_weight, self.box_weight, self.count_weight
        if not 0 < sum(weights) < float("inf"):
            raise ValueError(f"tag_weight, box_weight and count_weight must be finite and not all 0, got {weights}")
        if self.count_weight == 0:
            object.__setattr__(self, "needs", self.needs - {"target.count"})  # of this one, not of the class

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no count."""
        if self.count_weight:
            true_count(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32; raises ValueError for a target that is no count."""
        assert batch.outputs.texts is not None, "scoring checks needs"
        counts = [true_count(prompt) if self.count_weight else None for prompt in batch.prompts]
        pairs = zip(batch.outputs.texts, counts, strict=True)
        return torch.tensor([self._judge(text, count) for text, count in pairs], dtype=torch.float32)

    def _judge(self, text: str, count: int | None) -> float:
        try:
            contents = tagged(text, self.tags).contents
        except ParseError:
            return 0.0
        number = len(thought_boxes(contents[0]))
        is_right = number == count
        has_boxes = 0 < number <= MAX_BOXES or (count == 0 and is_right)
        points = self.tag_weight * all(map(str.strip, contents)) + self.box_weight * has_boxes
        return (points + self.count_weight * is_right) / (self.tag_weight + self.box_weight + self.count_weight)


def thought_boxes(thought: str) -> set[Box]:
    """Reads the different boxes of a text."""
    fours = (tuple(map(float, match[0].split(","))) for match in _FOUR.finditer(thought))
    return {(x1, y1, x2, y2) for x1, y1, x2, y2 in fours if x1 < x2 and y1 < y2}


def true_count(prompt: Prompt) -> int:
    """Returns `target.count` of a prompt; raises ValueError where it is no whole number from 0 to MAX_BOXES."""
    count = prompt.target["count"]
    if not is_number(count) or not 0 <= count <= MAX_BOXES or count != int(count):  # 2.0 is 2, as for `count`
        raise ValueError(
            f"target.count must be a whole number from 0 to {MAX_BOXES}, got {count!r} for {prompt.text!r}"
        )
    return int(count)
