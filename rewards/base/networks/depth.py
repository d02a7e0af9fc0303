"""A frozen DPT of transformers: the depth of images, largest where near; and a random small twin."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .clip import TINY_PIXELS
from .loading import loading
from .tiny import randomise


def load_dpt(model: str, device: torch.device) -> Any:
    """Loads a DPT (Ranftl et al. 2021, arXiv 2103.13413) in float32. Raises ConfigError where there is none."""
    from transformers import AutoConfig, DPTForDepthEstimation

    with loading("DPT", model, "a DPT of transformers, such as Intel/dpt-hybrid-midas"):
        kind = AutoConfig.from_pretrained(model).model_type
        if kind != "dpt":
            raise ValueError(f"its model_type is {kind!r}, not dpt")
        dpt: Any = DPTForDepthEstimation.from_pretrained(model, dtype=torch.float32)
    return dpt.to(device).eval().requires_grad_(False)


def depth_of(dpt: Any, images: Tensor) -> Tensor:
    """Returns the depth [B, H, W] in [0, 1] of images [B, 3, H, W] in [0, 1], each divided by its largest value.

    As ControlNet++ (train/reward_control.py) asks the model: images become as large as the model's own, a square of
    384 pixels (bilinear), and (x - 0.5) / 0.5; the depth is resized back (bilinear). With a gradient to the images.
    """
    from torchvision.transforms.v2.functional import InterpolationMode, resize

    side, size = dpt.config.image_size, list(images.shape[-2:])
    with torch.autocast(dpt.device.type, enabled=False):
        given = images.to(dpt.device, torch.float32)
        pixels = 2 * resize(given, [side, side], InterpolationMode.BILINEAR, antialias=True) - 1
        depth = resize(dpt(pixel_values=pixels).predicted_depth, size, InterpolationMode.BILINEAR, antialias=True)
        return divided_by_largest(depth)


def divided_by_largest(maps: Tensor) -> Tensor:
    """Returns maps [B, H, W] of numbers from 0 on, each divided by its largest one; a map of zeros stays as it is."""
    largest = maps.amax((1, 2), keepdim=True)
    return maps / torch.where(largest > 0, largest, torch.ones_like(largest))


def write_tiny_dpt(folder: Path, seed: int) -> None:
    """Writes a random DPT of small sizes as transformers saves one."""
    from transformers import DPTConfig, DPTForDepthEstimation

    config = DPTConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        image_size=TINY_PIXELS,
        patch_size=8,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
        use_auxiliary_head=False,
    )
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        dpt: Any = DPTForDepthEstimation(config)
    randomise(dpt, torch.Generator().manual_seed(seed))
    with torch.no_grad():  # the last layer is cut off at 0, where a random one would see nothing of many images
        dpt.head.head[4].weight.abs_()
        dpt.head.head[4].bias.fill_(0.1)
    dpt.save_pretrained(folder)
