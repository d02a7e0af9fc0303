"""Stable Diffusion XL: Stable Diffusion with two text encoders, pooled text and sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .flow.decisions import Conditioning
from .stable_diffusion import StableDiffusion


@dataclass(kw_only=True)
class StableDiffusionXL(StableDiffusion):
    """A `StableDiffusionXLPipeline` (Podell et al. 2023, arXiv 2307.01952), told its own size and no cropping."""

    family: ClassVar[tuple[str, str]] = ("stable_diffusion_xl", "Stable Diffusion XL")
    pipeline_class: ClassVar[str] = "StableDiffusionXLPipeline"
    without: ClassVar[Mapping[str, Any]] = MappingProxyType({"add_watermarker": False})
    encoders: ClassVar[tuple[str, ...]] = ("text_encoder", "text_encoder_2")

    height: int = 1024
    width: int = 1024

    def tiny(self, seed: int, folder: Path) -> Self:
        """The same settings on a random twin of small sizes: 32 x 32 pixels, both text encoders."""
        from .tiny.stable_diffusion import write_tiny_stable_diffusion_xl

        write_tiny_stable_diffusion_xl(folder, seed)
        return self.twin(folder)

    def added(self, conditioning: Conditioning) -> dict[str, Tensor] | None:
        _, pooled, sizes = conditioning.tensors
        return {"text_embeds": pooled, "time_ids": sizes}

    def encode_prompts(self, texts: list[str]) -> Conditioning:
        with self.encoders_on_device():
            states, _, pooled, _ = self._pipeline.encode_prompt(
                prompt=texts, device=self.device, do_classifier_free_guidance=False
            )
        size = (self.height, self.width)
        sizes = torch.tensor([*size, 0, 0, *size], dtype=torch.float32, device=self.device)  # original, crop, target
        return Conditioning((states, pooled, sizes.repeat(len(texts), 1)))

    def negative(self) -> Conditioning:
        """An empty one is zeros where the checkpoint was trained so."""
        row = super().negative()
        if self.negative_prompt or not self._pipeline.config.force_zeros_for_empty_prompt:
            return row
        states, pooled, sizes = row.tensors
        return Conditioning((torch.zeros_like(states), torch.zeros_like(pooled), sizes))
