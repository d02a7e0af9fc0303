"""The distance of a click from its target."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas, Point

from ..base.answers import TagReward
from ..base.grounding import answered_clicks, canvas_of, target_box, true_point

Target = Literal["box", "point"]


@dataclass(frozen=True)
class ClickDistance(TagReward):
    """The nearness of a click to its target: max(0, 1 - (d / d_max)^power), 1 on the spot and 0 at the farthest corner.

    d is the distance of the click from the centre of `target.box`, or from `target.point` with `target: point`. d_max
    is the distance of the corner of the image that is farthest from the target; with `reach` it is that number instead,
    and a click farther away earns nothing. In both, x and y run from 0 to 1 over the image. The score is continuous, so
    two misses can be told apart.

    Yuan et al. 2025 (SE-GUI, arXiv 2505.12370) add 1 for a click inside of the box: this reward and `point_in_box`,
    each with weight 1. The score of SE-GUI goes below 0 outside of the image, here it ends at 0.

    Where the policy makes actions, the action is read (any click counts), else the one point or box in the `tag` of the
    text (None: anywhere). A box counts by its centre. The score is 0 for no click, another action, and a box with its
    corners in the wrong order.
    """

    source: ClassVar[str] = "Yuan et al. 2025 (SE-GUI), arXiv 2505.12370"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.box"})
    batch_size: ClassVar[int | None] = None

    target: Target = "box"  # measure from the centre of `target.box`, or from `target.point`
    power: Annotated[float, Field(gt=0)] = 2.0  # exponent of the distance; SE-GUI's
    # distance at which the score ends at 0, as a share of the image: 0.14 is where AndroidControl still counts a hit;
    # null: that of the farthest corner
    reach: Annotated[float, Field(gt=0)] | None = None
    tag: str | None = None  # the tag of the text with the click; null: anywhere in the text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target == "point":
            object.__setattr__(self, "needs", self.needs - {"target.box"} | {"target.point"})

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no box, or no point."""
        self._spot(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no place, or a prompt without an image.
        """
        clicks = answered_clicks(batch, self.tag)
        scores = [
            self._judge(click, self._spot(batch.prompts[row]), canvas_of(batch, row))
            for row, click in enumerate(clicks)
        ]
        return torch.tensor(scores, dtype=torch.float32)

    def _spot(self, prompt: Prompt) -> Point:
        if self.target == "point":
            return true_point(prompt.target["point"], "target.point", prompt)
        x1, y1, x2, y2 = target_box(prompt)
        return (x1 + x2) / 2, (y1 + y2) / 2

    def _judge(self, click: Action | None, spot: Point, canvas: Canvas) -> float:
        if click is None or click.point is None:
            return 0.0
        width, height = canvas.original
        x, y = spot[0] / width, spot[1] / height
        farthest = math.hypot(max(abs(x), abs(1 - x)), max(abs(y), abs(1 - y)))
        share = math.hypot(click.point[0] / width - x, click.point[1] / height - y) / (self.reach or farthest)
        return 1 - math.pow(min(share, 1.0), self.power)
