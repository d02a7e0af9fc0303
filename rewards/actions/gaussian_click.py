"""The nearness of a click to its target, by Gaussians of the target's size: GUI-G2."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Granularity, RewardBatch
from mmrl.core.data import Prompt

from ..base.answers import TagReward
from ..base.boxes import has_area
from ..base.grounding import answered_clicks, target_box, target_boxes


@dataclass(frozen=True)
class GaussianClick(TagReward):
    """The weighted mean of a point term and a coverage term of Gaussians, each in [0, 1] and 1 for the target itself.

    Tang et al. 2025 (GUI-G2, arXiv 2507.15846). A box is a Gaussian at its centre with a standard deviation of `alpha`
    times each side, so that small targets ask for more precision:
      point     exp(-((x - cx)^2 / sx^2 + (y - cy)^2 / sy^2) / 2), s of the target, (x, y) the answer's point or centre
      coverage  Bhattacharyya coefficient of the two Gaussians: 1 where position and size are the target's
    The paper adds the two terms and a format term: weight 2 of this reward gives the sum of the two.

    A click on a point has no size and is judged by the point term alone, so its best score is 1 too. With `needs_box` a
    point scores 0, as does a box whose corners are one point: otherwise a model that is asked for boxes would learn to
    write points, whose size is never wrong.

    Where the policy makes actions, the action is read (any click counts), else the one point or box in the `tag` of the
    text (None: anywhere). The score is 0 for no click, another action, and a box without area or with its corners in
    the wrong order (in the paper's code an inverted box earns full marks).
    """

    source: ClassVar[str] = "Tang et al. 2025 (GUI-G2), arXiv 2507.15846"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    granularity: ClassVar[Granularity] = "sample"
    differentiable: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"texts", "canvases", "target.box"})
    batch_size: ClassVar[int | None] = None

    alpha: Annotated[float, Field(gt=0)] = 0.5  # standard deviation over the side of a box; the paper's
    point_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of the point term
    # weight of the coverage term; with 0 the size of an answered box does not matter
    coverage_weight: Annotated[float, Field(ge=0)] = 1.0
    # whether a click on a point scores 0: for models that are asked for boxes, as the paper's is
    needs_box: bool = False
    tag: str | None = None  # the tag of the text with the click; null: anywhere in the text

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.point_weight + self.coverage_weight == 0:
            raise ValueError("point_weight and coverage_weight must not both be 0")

    def check(self, prompt: Prompt) -> None:
        """Raises ValueError where the target is no box."""
        target_box(prompt)

    def score(self, batch: RewardBatch) -> Tensor:
        """Returns the scores [B] float32.

        Raises ValueError for a target that is no box, or a prompt without an image.
        """
        targets = target_boxes(batch)
        clicks = answered_clicks(batch, self.tag)
        points = [click.point if click and click.point else (0.0, 0.0) for click in clicks]
        boxes = [click.box if click and click.box else (0.0, 0.0, 0.0, 0.0) for click in clicks]
        point = point_term(torch.tensor(points, dtype=torch.float64).view(-1, 2), targets, self.alpha)
        box = torch.tensor(boxes, dtype=torch.float64).view(-1, 4)
        total = self.point_weight + self.coverage_weight
        both = (self.point_weight * point + self.coverage_weight * coverage_term(box, targets, self.alpha)) / total
        alone = torch.zeros_like(point) if self.needs_box or self.point_weight == 0 else point
        values = torch.where(has_area(box), both, alone)  # a click's box has an area
        is_click = torch.tensor([click is not None for click in clicks], dtype=torch.bool)
        return torch.where(is_click, values, 0.0).float()


def point_term(point: Tensor, target: Tensor, alpha: float) -> Tensor:
    """Returns the density of points [..., 2] in the Gaussian of boxes [..., 4], over its maximum."""
    centre, side = (target[..., :2] + target[..., 2:]) / 2, target[..., 2:] - target[..., :2]
    return torch.exp(-((point - centre) / (alpha * side)).square().sum(-1) / 2)


def coverage_term(box: Tensor, target: Tensor, alpha: float) -> Tensor:
    """Returns the Bhattacharyya coefficient of the Gaussians of boxes [..., 4] and [..., 4].

    It is the integral of sqrt(p q); along each axis sqrt(2 s t / (s^2 + t^2)) exp(-d^2 / (4 (s^2 + t^2))) with standard
    deviations s, t and distance d of the centres.
    """
    apart = (box[..., :2] + box[..., 2:] - target[..., :2] - target[..., 2:]) / 2
    s, t = alpha * (box[..., 2:] - box[..., :2]), alpha * (target[..., 2:] - target[..., :2])
    both = s.square() + t.square()
    return ((2 * s * t / both).sqrt() * torch.exp(-apart.square() / (4 * both))).prod(-1)
