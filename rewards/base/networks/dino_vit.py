"""DINO's first vision transformer on whole frames, as VBench reads them, and a random small twin."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .clip import TINY_PIXELS, TINY_WIDTH
from .image_embedders import Embed
from .loading import loading
from .resizing import normalised
from .tiny import randomise

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
TINY_VIT: dict[str, int] = {
    "hidden_size": TINY_WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": TINY_PIXELS,
    "patch_size": 8,
}
BATCH = 64  # images encoded at once: a batch of videos has many frames


def load_dino_vit(model: str, device: torch.device) -> Embed:
    """Loads a DINO (Caron et al. 2021, arXiv 2104.14294) in float32: the first token after the last normalisation.

    Images are prepared as in VBench (`dino_transform` of vbench/utils.py): the shorter side becomes the model's own
    (224), bilinear and without antialiasing; nothing is cut off; ImageNet's mean and deviation. Not rounded to 8 bits.
    Position embeddings of other shapes than a square are interpolated as transformers does it; DINO's own code gives
    the quotient of sides plus 0.1 patches.

    Raises ConfigError where there is no such model.
    """
    from transformers import AutoConfig, ViTModel

    with loading("DINO", model, "a ViT of transformers, such as facebook/dino-vitb16"):
        kind = AutoConfig.from_pretrained(model).model_type
        if kind != "vit":
            raise ValueError(f"its model_type is {kind!r}, not vit")
        dino: Any = ViTModel.from_pretrained(model, dtype=torch.float32, add_pooling_layer=False)
    dino.to(device).eval().requires_grad_(False)

    def embed(images: Tensor) -> Tensor:
        from torchvision.transforms.v2.functional import InterpolationMode, resize

        with torch.autocast(device.type, enabled=False):
            given = images.to(device, torch.float32)
            fitted = resize(given, [dino.config.image_size], InterpolationMode.BILINEAR, antialias=False)
            pixels = normalised(fitted, MEAN, STD)
            tokens = dino(pixel_values=pixels, interpolate_pos_encoding=True).last_hidden_state
            return normalize(tokens[:, 0], dim=-1)

    return lambda images: torch.cat([embed(part) for part in images.split(BATCH)])


def write_tiny_dino_vit(folder: Path, seed: int) -> None:
    """Writes a random DINO of small sizes as transformers saves one."""
    from transformers import ViTConfig, ViTModel

    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        dino = ViTModel(ViTConfig(**TINY_VIT), add_pooling_layer=False)
    randomise(dino, torch.Generator().manual_seed(seed))
    with torch.no_grad():  # a large first token would look alike for all images
        dino.embeddings.cls_token.mul_(0.1)
        dino.embeddings.position_embeddings[:, 0].mul_(0.1)
    dino.save_pretrained(folder)
