"""The size in pixels that a video's frames are resized to, by qwen-vl-utils."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class FrameSize:
    """Bounds of the area of a frame. Its sides become multiples of `factor`, and keep about the same ratio.

    A frame has at most `max_pixels`, and at most its share `2 * total_pixels / frames`, but this share is never less
    than 1.05 times `min_pixels`. A `max_pixels` below the default of `min_pixels` removes that default.

    The bounds stand here as in `fetch_video`, which computes them behind its own reading, and takes the 128,000 from a
    variable of the environment, on which a run must not depend.
    """

    factor: int  # pixels of the side of a token
    min_pixels: int | None = None  # of a frame; None: 128 tokens
    max_pixels: int | None = None  # of a frame; None: 768 tokens
    total_pixels: int | None = None  # of all pairs of frames together; None: 0.9 x 128,000 tokens

    def of(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """Returns the height and width that each of `num_frames` frames of `height` x `width` pixels is resized to.

        Raises ValueError where one side is more than 200 times the other.
        """
        from qwen_vl_utils.vision_process import (
            FRAME_FACTOR,
            MAX_RATIO,
            VIDEO_MAX_TOKEN_NUM,
            VIDEO_MIN_TOKEN_NUM,
            smart_resize,
        )

        token = self.factor**2
        least = VIDEO_MIN_TOKEN_NUM * token if self.min_pixels is None else self.min_pixels
        total = 128000 * token * 0.9 if self.total_pixels is None else self.total_pixels
        most = max(min(VIDEO_MAX_TOKEN_NUM * token, total / num_frames * FRAME_FACTOR), int(least * 1.05))
        if self.max_pixels is not None:
            most = min(most, self.max_pixels)
        try:
            rows, columns = smart_resize(height, width, self.factor, least if least <= most else 0, most)
        except ValueError as error:
            raise ValueError(
                f"has frames of {width} x {height} pixels; one side may be {MAX_RATIO} times the other"
            ) from error
        return max(self.factor, rows), max(self.factor, columns)  # it rounds the short side of a long frame to 0

    def resize(self, pixels: Tensor, num_frames: int | None = None) -> Tensor:
        """Returns frames, [F, 3, H, W] uint8, of a clip of `num_frames` (by default F) frames, resized."""
        from torchvision.transforms.v2 import InterpolationMode
        from torchvision.transforms.v2.functional import resize

        size = self.of(num_frames or len(pixels), *pixels.shape[-2:])
        resized: Tensor = resize(pixels, list(size), interpolation=InterpolationMode.BICUBIC, antialias=True)
        return resized
