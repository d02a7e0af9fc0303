"""Random images and texts for tests of rewards that look at images."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from mmrl.core.contracts import Placement, RewardBatch
from mmrl.core.data import Outputs
from tests.rewards.example import GROUP, make_batch

CPU = Placement(torch.device("cpu"), torch.float32)
SIDE = 32  # height and width in pixels: what tiny twins see, so that nothing is resized
LETTERS = "abcdefghij klmnop"


def random_images(rng: random.Random, count: int, side: int = SIDE) -> Tensor:
    """[count, 3, side, side] in [0, 1] of 8 bits: corners of the colour cube, colours, noise over a colour, noise."""
    images = []
    for _ in range(count):
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        colour, noise = torch.rand(3, 1, 1, generator=generator), torch.rand(3, side, side, generator=generator)
        kind = rng.randrange(4)
        share = (0.0, 0.0, 0.5, 1.0)[kind]
        images.append((1 - share) * (colour if kind else colour.round()) + share * noise)
    return (torch.stack(images) * 255).round() / 255


def random_texts(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.choices(LETTERS, k=rng.randrange(30))) for _ in range(count)]


def random_pictures(rng: random.Random) -> RewardBatch:
    """8 random images, each with a random prompt."""
    return make_batch(Outputs(images=random_images(rng, 2 * GROUP)), random_texts(rng, 2 * GROUP))


def to_pil(images: Tensor) -> list[Image.Image]:
    """8-bit pictures of images [B, 3, H, W] in [0, 1]."""
    levels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    return [Image.fromarray(level.contiguous().numpy()) for level in levels]


@dataclass(frozen=True)
class Shown:
    """A picture of a prompt that is in memory."""

    image: Image.Image

    @property
    def size(self) -> tuple[int, int]:
        return self.image.size

    def load(self) -> Image.Image:
        return self.image


def shown(images: Tensor) -> Sequence[tuple[Shown]]:
    """The media of one prompt for each image [B, 3, H, W]."""
    return [(Shown(image),) for image in to_pil(images)]


def smooth_images(height: int, width: int) -> Tensor:
    """[4, 3, height, width] of soft patches, in which tiny detectors find something."""
    rough = torch.rand(4, 3, 4, 5, generator=torch.Generator().manual_seed(3))
    return torch.nn.functional.interpolate(rough, (height, width), mode="bilinear")
