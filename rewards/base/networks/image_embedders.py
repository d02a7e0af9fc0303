"""Frozen image encoders whose embeddings can be compared: DINO and CLIP."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .clip import TINY_PIXELS, TINY_WIDTH, load_clip, write_tiny_clip
from .loading import loading
from .tiny import randomise

Encoder = Literal["dino", "clip"]
Embed = Callable[[Tensor], Tensor]  # images [B, 3, H, W] in [0, 1] -> embeddings [B, D] of length 1, with gradients
DEFAULTS: dict[Encoder, str] = {"dino": "facebook/dinov2-base", "clip": "openai/clip-vit-large-patch14"}
KINDS = ("dinov2", "dinov2_with_registers", "dinov3_vit")  # whose pooled output is the first token, normalised


def load_embedder(encoder: Encoder, model: str | None, device: torch.device) -> Embed:
    """Loads an encoder in float32 by hub name or folder; None: the default. Raises ConfigError where there is none."""
    source = model or DEFAULTS[encoder]
    return load_clip("transformers", source, None, device).images if encoder == "clip" else _load_dino(source, device)


def write_tiny_embedder(encoder: Encoder, folder: Path, seed: int) -> None:
    """Writes a random encoder of small sizes as transformers saves one."""
    if encoder == "clip":
        write_tiny_clip("transformers", folder, seed, embedding=4)
    else:
        _write_dino(folder, seed)


def _load_dino(model: str, device: torch.device) -> Embed:
    """Loads DINOv2 (Oquab et al. 2023, arXiv 2304.07193) or DINOv3: the first token after the last normalisation."""
    from transformers import AutoConfig, AutoImageProcessor, AutoModel

    with loading("DINO", model, "a DINOv2 or DINOv3 of transformers, with its image processor"):
        kind = AutoConfig.from_pretrained(model).model_type
        if kind not in KINDS:
            raise ValueError(f"its model_type is {kind!r}, not one of {', '.join(KINDS)}")
        dino: Any = AutoModel.from_pretrained(model, dtype=torch.float32)
        processor: Any = AutoImageProcessor.from_pretrained(model)
    dino.to(device).eval().requires_grad_(False)
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (processor.image_mean, processor.image_std))

    def embed(images: Tensor) -> Tensor:
        with torch.autocast(device.type, enabled=False):
            given = images.to(device, torch.float32)
            pixels: Tensor = processor(images=given, do_rescale=False, return_tensors="pt")["pixel_values"]
            # Bicubic resizing overshoots at edges; 8-bit images, which DINO was trained on, cut that off.
            pixels = pixels.clamp(-mean / std, (1 - mean) / std)
            return normalize(dino(pixel_values=pixels).pooler_output, dim=-1)

    return embed


def _write_dino(folder: Path, seed: int) -> None:
    from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

    config = Dinov2Config(
        hidden_size=TINY_WIDTH, num_hidden_layers=2, num_attention_heads=2, image_size=TINY_PIXELS, patch_size=8
    )
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        dino = Dinov2Model(config)
    randomise(dino, torch.Generator().manual_seed(seed))
    with torch.no_grad():  # a large first token would look alike for all images
        dino.embeddings.cls_token.mul_(0.1)
        dino.embeddings.position_embeddings[:, 0].mul_(0.1)
    dino.save_pretrained(folder)
    size = {"height": TINY_PIXELS, "width": TINY_PIXELS}
    BitImageProcessor(
        size={"shortest_edge": TINY_PIXELS},
        crop_size=size,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(folder)
