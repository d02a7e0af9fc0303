"""The verifier of the shapes lab without steps, so that its score has a gradient to the pixels."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.labs.shapes.world import BACKGROUND, CELL_CENTRES, COLOURS, SIZE, attributes, coverage

EDGE = 0.03  # of brightness: the width of what is a step in the verifier
LIFT, CORE = 0.245, 0.35  # brightness above the background at which a pixel is drawn, and inside of the shape
COLOUR, PLACE, OVERLAP = 0.3, 5.0, 0.07  # distances in RGB, in pixels and in overlap at which a score has halved


def soft_scores(images: Tensor, prompts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns scores of colour, shape and position, [B] in [0, 1], with a gradient to images [B, 3, 32, 32] in [0, 1].

    They measure the same as `world.verify`: the mean colour inside, the overlap with the four shapes of the same area
    and centroid, and the centroid. But a pixel counts by degrees, and scores fall like 1 / (1 + distance^2). So a wrong
    colour, a place far from the right one, and a shape that is far too large or too small have a gradient, too. An
    empty or a full image scores about 0. Raises ValueError for a prompt that is not in the grammar, or images of
    another shape.
    """
    if images.shape != (len(prompts), 3, SIZE, SIZE):
        raise ValueError(
            f"images have shape {list(images.shape)}; {len(prompts)} prompts need {[len(prompts), 3, SIZE, SIZE]}"
        )
    wanted = attributes(prompts)
    colour, shape, cell = (index.to(images.device) for index in (wanted.colour, wanted.shape, wanted.cell))
    lift = (images - BACKGROUND).abs().amax(dim=1)  # [B, H, W]
    mask = torch.sigmoid((lift - LIFT) / EDGE)
    area = mask.sum(dim=(1, 2))  # [B]
    grid = torch.arange(SIZE, dtype=images.dtype, device=images.device) + 0.5
    x, y = (mask.sum(1) * grid).sum(1) / area, (mask.sum(2) * grid).sum(1) / area
    is_drawn = _falling(((20 - area).relu() / 2 + (area - 160).relu() / 40).square(), 1.0)

    inside = torch.sigmoid((lift - CORE) / EDGE) * lift
    seen = (images * inside[:, None]).sum(dim=(2, 3)) / (inside.sum(dim=(1, 2)) + 1e-6)[:, None]  # [B, 3]
    palette = images.new_tensor(list(COLOURS.values()))
    of_colour = _falling((seen - palette[colour]).square().sum(1), COLOUR)

    templates = coverage(x, y, (area.clamp(20, 160) / math.pi).sqrt())  # [B, 4, H, W]
    drawn = mask[:, None]
    both = (drawn * templates).sum((2, 3))
    overlap = both / (drawn.sum((2, 3)) + templates.sum((2, 3)) - both)  # [B, 4]
    of_shape = torch.softmax(overlap / OVERLAP, dim=1).gather(1, shape[:, None]).squeeze(1)

    centres = images.new_tensor(CELL_CENTRES)
    of_place = _falling((x - centres[cell % 3]).square() + (y - centres[cell // 3]).square(), PLACE)
    return is_drawn * of_colour, is_drawn * of_shape, is_drawn * of_place


def _falling(squared_distance: Tensor, half: float) -> Tensor:
    """Returns 1 at distance 0 and 1/2 at distance `half`, falling everywhere between."""
    return 1 / (1 + squared_distance / half**2)
