"""Stable Diffusion XL: Stable Diffusion with two text encoders, pooled text and sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from .flow.decisions import Conditioning
from .stable_diffusion import StableDiffusion


@dataclass(kw_only=True)
class StableDiffusionXL(StableDiffusion):
    """A `StableDiffusionXLPipeline` (Podell et al. 2023, arXiv 2307.01952), conditioned on its own size, uncropped."""

    title: ClassVar[tuple[str, str]] = ("stable_diffusion_xl", "Stable Diffusion XL")
    pipeline_class: ClassVar[str] = "StableDiffusionXLPipeline"
    without: ClassVar[Mapping[str, Any]] = MappingProxyType({"add_watermarker": False})
    other_classes: ClassVar[tuple[str, ...]] = ()
    encoders: ClassVar[tuple[str, ...]] = ("text_encoder", "text_encoder_2")

    height: Annotated[int, Field(ge=1)] = 1024  # in pixels, a multiple of 8
    width: Annotated[int, Field(ge=1)] = 1024  # the same

    def tiny(self, seed: int, folder: Path) -> Self:
        """Returns the same settings on a random twin of small sizes: 32 x 32 pixels, both text encoders."""
        from .tiny.stable_diffusion import write_tiny_stable_diffusion_xl

        write_tiny_stable_diffusion_xl(folder, seed, embeds_guidance=self.embedded_guidance is not None)
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

    @property
    def encoding_settings(self) -> tuple[int, ...]:
        return (self.height, self.width)

    def negative(self) -> Conditioning:
        """Returns the negative conditioning; zeros for an empty prompt where the checkpoint was trained so."""
        row = super().negative()
        if self.negative_prompt or not self._pipeline.config.force_zeros_for_empty_prompt:
            return row
        states, pooled, sizes = row.tensors
        return Conditioning((torch.zeros_like(states), torch.zeros_like(pooled), sizes))
