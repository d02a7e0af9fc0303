"""The prompts on which a type of model that no test runs is asked and compared when it is loaded."""

from dataclasses import dataclass

import torch
from PIL import Image

from mmrl.core.data import Prompt
from mmrl.media.video import FrameClip


@dataclass(frozen=True)
class _Pattern:
    """An image without a file, in which no two places look alike."""

    size: tuple[int, int]  # width, height
    shift: int = 0

    def load(self) -> Image.Image:
        across, down = torch.arange(self.size[0])[:, None], torch.arange(self.size[1])[:, None, None]
        values = across**2 // 90 + across * down // 70 + 3 * down + 80 * torch.arange(3)  # [height, width, 3]
        return Image.fromarray(((values + self.shift) % 256).to(torch.uint8).numpy())


_SOURCE = "the comparison with the model's own forward pass"  # the source of the prompts in errors
# of different shapes, so that families with tiles cut them into different numbers
IMAGES = (
    Prompt("what is on the left of the <image> box?", (_Pattern((448, 280)),), source=_SOURCE),
    Prompt("<image>click the red one", (_Pattern((200, 400)),), source=_SOURCE),
)
# no longer than high and wide: behind longer clips transformers counts positions otherwise than `rope_positions`
_CLIP = FrameClip("of a pattern", tuple(_Pattern((112, 84), 40 * number) for number in range(4)), (0.0, 0.5, 1.0, 1.5))
CLIPS = (Prompt("<video>what is moving?", clips=(_CLIP,), source=_SOURCE), IMAGES[1])
# of more shapes: which tokens stand around an image may depend on it
SHAPES = tuple(
    Prompt("<image>", (_Pattern(size),), source=_SOURCE) for size in ((600, 150), (150, 600), (490, 490), (900, 600))
)
TWO_IMAGES = Prompt("<image> or <image>?", (_Pattern((120, 90)), _Pattern((90, 120))), source=_SOURCE)
