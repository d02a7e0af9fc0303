"""The prompts with which a pipeline is probed."""

from dataclasses import dataclass
from typing import Any

import torch

from mmrl.core.data import Prompt

_TEXTS = ("a dog", "a longer text of a red dog")  # of different lengths
_SMALLEST = 64  # side of the pictures; FLUX.2 takes no smaller ones


def probe_prompts(width: int, height: int, num_images: int) -> list[Prompt]:
    """Returns two prompts of different lengths, each with random images for samples of a size in pixels."""
    sides = (max(width, _SMALLEST), max(height, _SMALLEST))
    media = tuple(_Noise(*sides, seed) for seed in range(num_images))
    return [Prompt(text, media) for text in _TEXTS]


@dataclass(frozen=True)
class _Noise:
    """A random picture."""

    width: int
    height: int
    seed: int

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height

    def load(self) -> Any:
        from PIL import Image

        values = torch.rand(self.height, self.width, 3, generator=torch.Generator().manual_seed(self.seed))
        return Image.fromarray(values.mul(255).byte().numpy())
