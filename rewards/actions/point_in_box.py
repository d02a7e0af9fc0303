"""Does the click hit its target?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Point

from ..base.answers import TagReward
from ..base.grounding import answered_clicks, target_box, target_boxes, true_point


@dataclass(frozen=True)
class PointInBox(TagReward):
    """A hit: 1 where the click lies in `target.box`, the borders included as in ScreenSpot's evaluation, else 0.

    Cheng et al. 2024 (SeeClick and ScreenSpot, arXiv 2401.10935). Where the policy makes actions, the action is read
    (any click counts), else the one point or box in the `tag` of the text (None: anywhere). A box counts by its centre.
    The score is 0 for no click, another action, and a box with its corners in the wrong order.

    With `polygon` the click must lie in `target.polygon`, a list of corners in pixels, borders included: by the number
    of sides that a ray from it crosses. OSWorld-G has such targets (Xie et al. 2025, arXiv 2505.13227).
    """

    source: ClassVar[str] = "Cheng et al. 2024 (ScreenSpot), arXiv 2401.10935"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.box"})
    batch_size: ClassVar[int | None] = None

    tag: str | None = None  # the tag of the text with the click; null: anywhere in the text
    polygon: bool = False  # whether the place to hit is `target.polygon` instead of `target.box`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.polygon:
            object.__setattr__(self, "needs", self.needs - {"target.box"} | {"target.polygon"})

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no box, or with `polygon` no list of three corners or more."""
        if self.polygon:
            target_polygon(prompt)
        else:
            target_box(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no box (no polygon), or a prompt without an image.
        """
        clicks = answered_clicks(batch, self.tag)
        nowhere = (float("nan"), float("nan"))  # inside of no box
        points = [click.point if click and click.point else nowhere for click in clicks]
        if self.polygon:
            pairs = zip(map(target_polygon, batch.prompts), points, strict=True)
            return torch.tensor([float(holds(corners, point)) for corners, point in pairs], dtype=torch.float32)
        targets = target_boxes(batch)
        point = torch.tensor(points, dtype=torch.float64).view(-1, 2)
        return ((targets[:, :2] <= point) & (point <= targets[:, 2:])).all(1).float()


def target_polygon(prompt: Prompt) -> tuple[Point, ...]:
    """Reads `target.polygon` of a prompt; raises ValueError where it is no list of three corners or more."""
    given = prompt.target["polygon"]
    if not isinstance(given, list | tuple) or len(given) < 3:
        raise ValueError(f"target.polygon must be three corners or more, got {given!r} for {prompt.text!r}")
    return tuple(true_point(corner, "a corner of target.polygon", prompt) for corner in given)


def holds(corners: Sequence[Point], point: Point) -> bool:
    """Returns whether a point lies in a polygon or on its border; of a polygon that crosses itself, by even and odd."""
    (x, y), is_inside = point, False
    for (x1, y1), (x2, y2) in zip(corners, (*corners[1:], corners[0]), strict=True):
        turn = (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)  # 0: on the line of this side
        if turn == 0 and min(x1, x2) <= x <= max(x1, x2) and min(y1, y2) <= y <= max(y1, y2):
            return True
        if (y1 > y) != (y2 > y) and (turn > 0) == (y2 > y1):  # a ray to the right crosses the side
            is_inside = not is_inside
    return is_inside
