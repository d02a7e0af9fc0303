"""A frozen network of transformers that says the class of each pixel, and a random small twin."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .dino_vit import MEAN, STD
from .loading import loading
from .resizing import normalised
from .tiny import randomise


@dataclass(frozen=True)
class Segmenter:
    """A frozen network for semantic segmentation, in float32 whatever the run's precision."""

    num_classes: int
    logits: Callable[[Tensor], Tensor]  # images [B, 3, H, W] in [0, 1] -> [B, classes, h, w], with a gradient


def load_segmenter(model: str, device: torch.device) -> Segmenter:
    """Loads a network for semantic segmentation by hub name or folder, such as UperNet (Xiao et al. 2018, 1807.10221).

    Images keep their size; ImageNet's mean and deviation are taken off, whatever the model's image processor says. The
    logits are as large as the network makes them: UperNet's have the size of the image, SegFormer's a quarter of it.

    Raises ConfigError where there is no such model.
    """
    from transformers import AutoModelForSemanticSegmentation

    with loading("segmentation network", model, "a model of transformers for semantic segmentation, such as UperNet"):
        network: Any = AutoModelForSemanticSegmentation.from_pretrained(model, dtype=torch.float32)
    network.to(device).eval().requires_grad_(False)

    def logits(images: Tensor) -> Tensor:
        with torch.autocast(device.type, enabled=False):
            found: Tensor = network(pixel_values=normalised(images.to(device, torch.float32), MEAN, STD)).logits
            return found

    return Segmenter(int(network.config.num_labels), logits)


def write_tiny_segmenter(folder: Path, seed: int, num_classes: int) -> None:
    """Writes a random UperNet of small sizes as transformers saves one."""
    from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation

    backbone = ConvNextConfig(
        hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage1", "stage2", "stage3", "stage4"]
    )
    config = UperNetConfig(
        backbone_config=backbone,
        hidden_size=16,
        pool_scales=[1, 2],
        use_auxiliary_head=False,
        num_labels=num_classes,
    )
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        network = UperNetForSemanticSegmentation(config)
    randomise(network, torch.Generator().manual_seed(seed))
    network.save_pretrained(folder)
