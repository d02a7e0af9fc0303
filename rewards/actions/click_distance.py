"""How far a click is from where it should be."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
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
    """max(0, 1 - (d / d_max)^power), 1 on the spot and 0 at the corner of the image that is farthest from it.

    d is the distance of the click from the centre of `target.box`, or from `target.point` with `target: point`, and
    d_max that of the farthest corner, both with x and y running from 0 to 1 over the image. With `reach` d_max is that
    number instead: nothing is earned farther away. Continuous everywhere, so two misses can be told apart.

    Yuan et al. 2025 (SE-GUI, arXiv 2505.12370) add 1 for a click inside of the box: that is this reward and
    `point_in_box`, each with weight 1. Their score goes below 0 outside of the image, here it ends at 0.

    A box as an answer counts by its centre. Where the policy makes actions these are read (any click counts), else the
    one point or box in the `tag` of the text (None: anywhere). 0 where there is none, for another action, and for a box
    with its corners in the wrong order.
    """

    source: ClassVar[str] = "Yuan et al. 2025 (SE-GUI), arXiv 2505.12370"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.box"})
    batch_size: ClassVar[int | None] = None

    target: Target = "box"
    power: float = 2.0  # above 0; SE-GUI's
    reach: float | None = None  # above 0, a share of the image: 0.14 is where AndroidControl still counts a hit
    tag: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target not in get_args(Target):
            raise ValueError(f"target must be one of {', '.join(get_args(Target))}, got {self.target!r}")
        if not (self.power > 0 and (self.reach is None or self.reach > 0)):
            raise ValueError(f"power and reach must be above 0, got {self.power} and {self.reach}")
        if self.target == "point":
            object.__setattr__(self, "needs", self.needs - {"target.box"} | {"target.point"})

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no box, or no point."""
        self._spot(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for a target that is no place, or a prompt without an image."""
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
