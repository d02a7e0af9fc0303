"""The size in pixels that a video's frames are resized to, by the rules of qwen-vl-utils."""

import math
from dataclasses import dataclass

from torch import Tensor

FRAME_FACTOR = 2  # frames that models merge into one step of time
MAX_RATIO = 200  # the largest ratio of the longer to the shorter side


@dataclass(frozen=True)
class FrameSize:
    """Bounds of the area of a frame. Its sides become multiples of `factor`, and keep about the same ratio.

    A frame has at most `max_pixels`, and at most its share `2 * total_pixels / frames`, but never less than 1.05 times
    `min_pixels`. The defaults are those of qwen-vl-utils.
    """

    factor: int  # pixels of the side of a token
    min_pixels: int | None = None  # of a frame; None: 128 tokens
    max_pixels: int | None = None  # of a frame; None: 768 tokens
    total_pixels: int | None = None  # of all pairs of frames together; None: 0.9 x 128,000 tokens

    def of(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """Returns the height and width that each of `num_frames` frames of `height` x `width` pixels is resized to.

        Raises ValueError where one side is more than `MAX_RATIO` times the other.
        """
        token = self.factor**2
        least = 128 * token if self.min_pixels is None else self.min_pixels
        total = 128000 * token * 0.9 if self.total_pixels is None else self.total_pixels
        most = max(min(768 * token, total / num_frames * FRAME_FACTOR), int(least * 1.05))
        if self.max_pixels is not None:
            most = min(most, self.max_pixels)
        return _resized(height, width, self.factor, least, most)

    def resize(self, pixels: Tensor, num_frames: int | None = None) -> Tensor:
        """Returns frames, [F, 3, H, W] uint8, of a clip of `num_frames` (by default F) frames, resized."""
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2.functional import resize

        size = self.of(num_frames or len(pixels), *pixels.shape[-2:])
        resized: Tensor = resize(pixels, list(size), interpolation=InterpolationMode.BICUBIC, antialias=True)
        return resized


def _resized(height: int, width: int, factor: int, least: float, most: float) -> tuple[int, int]:
    """Returns the multiples of `factor` that are nearest to the sides, with a product from `least` to `most`."""
    if max(height, width) / min(height, width) > MAX_RATIO:
        raise ValueError(f"has frames of {width} x {height} pixels; one side may be {MAX_RATIO} times the other")
    rows, columns = (max(factor, round(side / factor) * factor) for side in (height, width))
    if rows * columns > most:
        shrink = math.sqrt(height * width / most)
        rows, columns = (max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width))
    elif rows * columns < least:
        grow = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(side * grow / factor) * factor for side in (height, width))
    return rows, columns


def nearest_even(count: int) -> int:
    """Returns the nearest multiple of `FRAME_FACTOR`."""
    return round(count / FRAME_FACTOR) * FRAME_FACTOR
