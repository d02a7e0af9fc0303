"""Does the click hit its target?"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward
from ..base.grounding import answered_clicks, target_box, target_boxes


@dataclass(frozen=True)
class PointInBox(TagReward):
    """1 where the click lies in `target.box`, the borders included as in ScreenSpot's evaluation, else 0.

    Cheng et al. 2024 (SeeClick and ScreenSpot, arXiv 2401.10935). A box as an answer counts by its centre. Where the
    policy makes actions these are read (any click counts), else the one point or box in the `tag` of the text (None:
    anywhere). 0 where there is none, for another action, and for a box with its corners in the wrong order.
    """

    source: ClassVar[str] = "Cheng et al. 2024 (ScreenSpot), arXiv 2401.10935"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.box"})
    batch_size: ClassVar[int | None] = None

    tag: str | None = None

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no box."""
        target_box(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """[B] float32; raises ValueError for a target that is no box, or a prompt without an image."""
        targets = target_boxes(batch)
        clicks = answered_clicks(batch, self.tag)
        nowhere = (float("nan"), float("nan"))  # inside of no box
        points = [click.point if click and click.point else nowhere for click in clicks]
        point = torch.tensor(points, dtype=torch.float64).view(-1, 2)
        return ((targets[:, :2] <= point) & (point <= targets[:, 2:])).all(1).float()
