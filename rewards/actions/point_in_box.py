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
    """A hit: 1 where the click lies in `target.box`, the borders included as in ScreenSpot's evaluation, else 0.

    Cheng et al. 2024 (SeeClick and ScreenSpot, arXiv 2401.10935). Where the policy makes actions, the action is read
    (any click counts), else the one point or box in the `tag` of the text (None: anywhere). A box counts by its centre.
    The score is 0 for no click, another action, and a box with its corners in the wrong order.
    """

    source: ClassVar[str] = "Cheng et al. 2024 (ScreenSpot), arXiv 2401.10935"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.box"})
    batch_size: ClassVar[int | None] = None

    tag: str | None = None  # the tag of the text with the click; null: anywhere in the text

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no box."""
        target_box(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no box, or a prompt without an image.
        """
        targets = target_boxes(batch)
        clicks = answered_clicks(batch, self.tag)
        nowhere = (float("nan"), float("nan"))  # inside of no box
        points = [click.point if click and click.point else nowhere for click in clicks]
        point = torch.tensor(points, dtype=torch.float64).view(-1, 2)
        return ((targets[:, :2] <= point) & (point <= targets[:, 2:])).all(1).float()
