"""Resizing and normalising of images as published models do it, on tensors and with gradients."""

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

GRID = 28  # in pixels; sides of images are multiples in Qwen2-VL and Qwen2.5-VL


def fit_longer_side(images: Tensor, side: int, *, antialias: bool) -> Tensor:
    """Returns images [B, 3, side, side] of [B, 3, H, W]: the longer side resized to `side`, padded with black."""
    from torchvision.transforms.v2.functional import InterpolationMode, resize

    height, width = images.shape[-2:]
    scale = side / max(height, width)
    size = [round(height * scale), round(width * scale)]
    if scale != 1:
        images = resize(images, size, interpolation=InterpolationMode.BICUBIC, antialias=antialias)
    above, left = (side - size[0]) // 2, (side - size[1]) // 2
    return torch.nn.functional.pad(images, (left, side - size[1] - left, above, side - size[0] - above))


def fit_shorter_side(images: Tensor, side: int) -> Tensor:
    """Returns images [B, 3, side, side] of [B, 3, H, W] in [0, 1]: shorter side resized to `side`, middle cut out.

    Bicubic resizing overshoots at edges; 8-bit images, which models were trained on, cut that off, and so does this.
    """
    from torchvision.transforms.v2.functional import InterpolationMode, center_crop, resize

    resized = resize(images, [side], interpolation=InterpolationMode.BICUBIC, antialias=True)
    cropped: Tensor = center_crop(resized.clamp(0, 1), [side, side])
    return cropped


def normalised(images: Tensor, mean: tuple[float, float, float], std: tuple[float, float, float]) -> Tensor:
    """Returns (images - mean) / std for each channel of images [B, 3, H, W]."""
    return (images - images.new_tensor(mean)[:, None, None]) / images.new_tensor(std)[:, None, None]


def check_finite(images: Tensor) -> None:
    """Raises ValueError for images whose pixels are not all numbers."""
    if not images.isfinite().all():
        raise ValueError("images hold NaN or infinity; allowed are numbers in [0, 1]")


def check_bounds(min_pixels: int, max_pixels: int) -> None:
    """Raises ValueError for bounds of pixels that no image can keep."""
    if min_pixels > max_pixels:
        raise ValueError(f"min_pixels must be at most max_pixels ({max_pixels}), got {min_pixels}")


def within_pixels(images: Tensor, min_pixels: int, max_pixels: int) -> Tensor:
    """Returns images [..., 3, H, W] resized (bicubic) within the bounds of pixels; sides become multiples of 28.

    Raises ConfigError for a shape that Qwen2-VL does not take.
    """
    from qwen_vl_utils.vision_process import smart_resize
    from torchvision.transforms.v2.functional import InterpolationMode, resize

    try:
        size = smart_resize(images.shape[-2], images.shape[-1], GRID, min_pixels, max_pixels)
    except ValueError as error:
        raise ConfigError(f"Qwen2-VL cannot see {images.shape[-2]} x {images.shape[-1]} pixels: {error}") from error
    flat = resize(images.flatten(0, -4), list(size), InterpolationMode.BICUBIC, antialias=True)
    resized: Tensor = flat.clamp(0, 1).unflatten(0, images.shape[:-3])
    return resized
