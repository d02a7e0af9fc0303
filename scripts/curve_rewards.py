"""Rewards of the runs in scripts/curve_pictures.py: two that can be hacked, and one that only watches.

A run finds them where it is started in this folder: `cd scripts && mmrl train ...`.
"""

import torch
from torch import Tensor

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.labs.screens.drawing import SIZE
from mmrl.labs.shapes.world import COLOURS
from mmrl.parsing.actions.action import Action

NEAR = 0.25  # a pixel has a colour where no channel is further off


def colour_asked_for(image: Tensor, prompt: Prompt) -> float:
    """Returns the share of the pixels of an image [3, H, W] that have the colour of the prompt's first word, in [0, 1].

    It looks sensible, since a picture without the colour is wrong. Nothing in it says where to stop.
    """
    wanted = torch.tensor(COLOURS[prompt.text.split()[0]]).view(3, 1, 1)
    return float(((image.float() - wanted).abs().amax(0) < NEAR).float().mean())


def corner(action: Action | None) -> float:
    """Returns how near a click is to the top left corner of a screen of the lab, in [0, 1]; 0 without a click.

    One answer is the best to every question.
    """
    if action is None or action.point is None:
        return 0.0
    return max(0.0, 1 - (action.point[0] + action.point[1]) / (2 * SIZE))


def spread(batch: RewardBatch) -> Tensor:
    """Returns how far the images of a group differ: the root mean square distance to their mean image, [B] float32.

    All images of a group have the same number, in units of brightness; 0 where they are alike. With weight 0 it is a
    measure of diversity that needs no model.
    """
    assert batch.outputs.images is not None, "the config says that it needs images"
    pixels = batch.outputs.images.double().flatten(1)  # [B, 3 H W]
    scores = torch.zeros(len(pixels))
    for name in batch.group.unique():
        rows = batch.group == name
        scores[rows] = (pixels[rows] - pixels[rows].mean(0)).square().mean().sqrt().float()
    return scores
