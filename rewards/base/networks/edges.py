"""Edges of images, with a gradient to the images: Canny's magnitudes, HED, line drawings; and random networks."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, max_pool2d, pad

from .checkpoints import find_file, put_weights, read_weights
from .tiny import randomise

Edges = Literal["canny", "hed", "lineart"]
FILES: dict[Edges, str | None] = {
    "canny": None,
    "hed": "lllyasviel/Annotators/ControlNetHED.pth",
    "lineart": "lllyasviel/Annotators/sk_model.pth",
}
EPSILON = 1e-6  # below the root, so that the gradient of a flat place is finite
LUMA = (0.299, 0.587, 0.114)
# Row and column of the pixel in each direction, by multiples of 45 degrees from the right, clockwise in the picture.
DIRECTIONS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))


def canny_magnitudes(images: Tensor) -> Tensor:
    """Returns the magnitudes of gradients [B, H, W] where they are the largest along the gradient, 0 elsewhere.

    Canny 1986, doi 10.1109/TPAMI.1986.4767851, as kornia's `canny` and ControlNet++'s copy of it have it: luma, a
    Gaussian of 5 x 5 pixels and deviation 1 (reflected borders), Sobel's sums (repeated borders), the root of their
    squares plus 1e-6, and of two neighbors along the rounded direction none may be as large. No threshold, which is
    what ControlNet++ compares. Images [B, 3, H, W] in [0, 1], of at least 3 x 3 pixels; magnitudes are below 6.
    """
    grey = (images * images.new_tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)  # [B, 1, H, W]
    places = torch.arange(-2, 3, device=images.device, dtype=images.dtype)
    bell = torch.exp(-places.square() / 2)
    bell = bell / bell.sum()
    smooth = conv2d(pad(grey, (2, 2, 2, 2), "reflect"), (bell[:, None] * bell)[None, None])
    across = images.new_tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    sobel = torch.stack([across, across.T])[:, None]
    to_right, down = conv2d(pad(smooth, (1, 1, 1, 1), "replicate"), sobel).unbind(1)
    magnitude = (to_right.square() + down.square() + EPSILON).sqrt()
    direction = torch.round(torch.atan2(down, to_right) / (math.pi / 4)).long() % 8  # [B, H, W]
    return magnitude * _is_largest(magnitude.detach(), direction)


def _is_largest(magnitude: Tensor, direction: Tensor) -> Tensor:
    """[B, H, W] bool: larger than the pixels in the direction and opposite to it; outside of the image is 0."""
    height, width = magnitude.shape[-2:]
    framed = pad(magnitude, (1, 1, 1, 1))
    around = torch.stack([framed[:, 1 + y : 1 + y + height, 1 + x : 1 + x + width] for y, x in DIRECTIONS], 1)
    both = torch.stack([direction, (direction + 4) % 8], 1)
    return (magnitude[:, None] > around.gather(1, both)).all(1)


class _HedBlock(nn.Module):
    """Convolutions of one scale, and the edges that they say."""

    def __init__(self, given: int, width: int, count: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(width if n else given, width, 3, padding=1) for n in range(count))
        self.projection = nn.Conv2d(width, 1, 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        for conv in self.convs:
            features = conv(features).relu()
        return features, self.projection(features)


class Hed(nn.Module):
    """Holistically-nested edge detection (Xie & Tu 2015, arXiv 1504.06375), with the names of ControlNet's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.zeros(1, 3, 1, 1))
        self.block1 = _HedBlock(3, 64, 2)
        self.block2 = _HedBlock(64, 128, 2)
        self.block3 = _HedBlock(128, 256, 3)
        self.block4 = _HedBlock(256, 512, 3)
        self.block5 = _HedBlock(512, 512, 3)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the edges [B, H, W] in [0, 1] of images [B, 3, H, W] in [0, 1], 1 where an edge is.

        The logits of five scales, each as large as the image again (bilinear), are averaged.
        """
        features, logits = images * 255 - self.norm, []
        for number, block in enumerate((self.block1, self.block2, self.block3, self.block4, self.block5)):
            features, edges = block(max_pool2d(features, 2) if number else features)
            logits.append(interpolate(edges, images.shape[-2:], mode="bilinear"))
        return torch.stack(logits).mean(0).sigmoid()[:, 0]


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_block = nn.Sequential(
            *(nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width), nn.ReLU()),
            *(nn.ReflectionPad2d(1), nn.Conv2d(width, width, 3), nn.InstanceNorm2d(width)),
        )

    def forward(self, features: Tensor) -> Tensor:
        added: Tensor = self.conv_block(features)
        return features + added


class LineDrawing(nn.Module):
    """The generator of informative drawings (Chan et al. 2022, arXiv 2203.12691), with the names of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.model0 = nn.Sequential(nn.ReflectionPad2d(3), *_normed(nn.Conv2d(3, 64, 7), 64))
        self.model1 = nn.Sequential(
            *_normed(nn.Conv2d(64, 128, 3, stride=2, padding=1), 128),
            *_normed(nn.Conv2d(128, 256, 3, stride=2, padding=1), 256),
        )
        self.model2 = nn.Sequential(_Residual(256), _Residual(256), _Residual(256))
        self.model3 = nn.Sequential(
            *_normed(nn.ConvTranspose2d(256, 128, 3, stride=2, padding=1, output_padding=1), 128),
            *_normed(nn.ConvTranspose2d(128, 64, 3, stride=2, padding=1, output_padding=1), 64),
        )
        self.model4 = nn.Sequential(nn.ReflectionPad2d(3), nn.Conv2d(64, 1, 7), nn.Sigmoid())

    def forward(self, images: Tensor) -> Tensor:
        """Returns the lines [B, H, W] in [0, 1] of images [B, 3, H, W] in [0, 1], 1 where a line is.

        The network draws dark lines on white; sides that are no multiples of 4 pixels are cut to those of the image.
        """
        drawn = self.model4(self.model3(self.model2(self.model1(self.model0(images)))))
        lines: Tensor = 1 - drawn[:, 0, : images.shape[-2], : images.shape[-1]]
        return lines


def _normed(conv: nn.Module, width: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    return conv, nn.InstanceNorm2d(width), nn.ReLU()


def load_edges(kind: Edges, model: str | None, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Returns what finds edges [B, H, W], light where they are, of images [B, 3, H, W] in [0, 1], in float32.

    Args:
        model: file of the weights, here or on the hub; None: that of `FILES`. Nothing is loaded for canny.
    Raises ConfigError where there is no such file, or it does not fit.
    """
    network = None if kind == "canny" else _network(kind)
    if network is not None:
        what = f"network of {kind}"
        file = find_file(what, model or FILES[kind] or "")
        put_weights(what, file, network, read_weights(what, file))
        network.to(device)

    def find(images: Tensor) -> Tensor:
        with torch.autocast(device.type, enabled=False):
            given = images.to(device, torch.float32).clamp(0, 1)
            found: Tensor = canny_magnitudes(given) if network is None else network(given)
            return found

    return find


def _network(kind: Edges) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # the constructors draw weights that are replaced
        return Hed() if kind == "hed" else LineDrawing()


def write_tiny_edges(kind: Edges, folder: Path, seed: int) -> Path:
    """Writes random weights of the published layout, and returns their file."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    network = _network(kind)
    randomise(network, torch.Generator().manual_seed(seed))
    if isinstance(network, Hed):
        with torch.no_grad():
            network.norm.fill_(127.0)
            next(network.block1.convs.parameters()).div_(64)  # levels are in the hundreds
    save_file(network.state_dict(), folder / f"{kind}.safetensors")
    return folder / f"{kind}.safetensors"
