"""Inception-ResNet v1, which says how alike faces are, with the names of facenet-pytorch; and a random narrow one."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

from .checkpoints import find_file, put_weights, read_weights
from .tiny import randomise

SIDE = 160  # pixels that it sees
FIRST = "conv2d_1a.conv.weight"  # has 32 channels in the published network
NARROW = 8  # the channels of a tiny one are divided by it
Size = int | tuple[int, int]  # of a kernel


class BasicConv2d(nn.Module):
    """A convolution without bias, normalisation and ReLU."""

    def __init__(self, given: int, width: int, size: Size, stride: int = 1, *, pads: bool = False) -> None:
        super().__init__()
        sizes = (size, size) if isinstance(size, int) else size
        padding = (sizes[0] // 2, sizes[1] // 2) if pads else 0
        self.conv = nn.Conv2d(given, width, size, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(width, eps=0.001)

    def forward(self, features: Tensor) -> Tensor:
        normed: Tensor = self.bn(self.conv(features))
        return normed.relu()


def _branch(given: int, *layers: tuple[int, Size]) -> nn.Module:
    """Returns padded convolutions (channels, size) one behind the other; a single one is no sequence."""
    widths = (given, *(width for width, _ in layers))
    convs = [BasicConv2d(widths[n], width, size, pads=True) for n, (width, size) in enumerate(layers)]
    return convs[0] if len(convs) == 1 else nn.Sequential(*convs)


class Residual(nn.Module):
    """x + scale * conv2d(branches of x), with a ReLU behind unless it is the last."""

    def __init__(
        self, width: int, inner: int, scale: float, sizes: tuple[tuple[Size, ...], ...], *, is_last: bool = False
    ) -> None:
        super().__init__()
        self.scale, self.is_last, self.num_branches = scale, is_last, len(sizes)
        for number, branch in enumerate(sizes):
            self.add_module(f"branch{number}", _branch(width, *((inner, size) for size in branch)))
        self.conv2d = nn.Conv2d(inner * len(sizes), width, 1)

    def forward(self, features: Tensor) -> Tensor:
        branches = [self.get_submodule(f"branch{number}")(features) for number in range(self.num_branches)]
        added: Tensor = self.scale * self.conv2d(torch.cat(branches, 1)) + features
        return added if self.is_last else added.relu()


class Reduction(nn.Module):
    """Branches that halve the sides: sequences of convolutions, the last of which has stride 2, and a pooling."""

    def __init__(self, given: int, branches: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.num_branches = len(branches) + 1
        for number, widths in enumerate(branches):
            convs = [BasicConv2d(given, widths[0], 1 if len(widths) > 1 else 3, 1 if len(widths) > 1 else 2)]
            for place in range(1, len(widths)):
                is_end = place == len(widths) - 1
                convs.append(BasicConv2d(widths[place - 1], widths[place], 3, 2 if is_end else 1, pads=not is_end))
            self.add_module(f"branch{number}", convs[0] if len(convs) == 1 else nn.Sequential(*convs))
        self.add_module(f"branch{len(branches)}", nn.MaxPool2d(3, 2))

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([self.get_submodule(f"branch{number}")(features) for number in range(self.num_branches)], 1)


class InceptionResnetV1(nn.Module):
    """Inception-ResNet v1 (Szegedy et al. 2016, arXiv 1602.07261) as FaceNet's successors train it on faces.

    `narrow` divides all channels but those of the image; the published network has 1.
    """

    def __init__(self, narrow: int = 1) -> None:
        super().__init__()
        n = narrow
        self.conv2d_1a = BasicConv2d(3, 32 // n, 3, 2)
        self.conv2d_2a = BasicConv2d(32 // n, 32 // n, 3)
        self.conv2d_2b = BasicConv2d(32 // n, 64 // n, 3, pads=True)
        self.maxpool_3a = nn.MaxPool2d(3, 2)
        self.conv2d_3b = BasicConv2d(64 // n, 80 // n, 1)
        self.conv2d_4a = BasicConv2d(80 // n, 192 // n, 3)
        self.conv2d_4b = BasicConv2d(192 // n, 256 // n, 3, 2)
        small, wide, wider = ((1,), (1, 3), (1, 3, 3)), ((1,), (1, (1, 7), (7, 1))), ((1,), (1, (1, 3), (3, 1)))
        self.repeat_1 = nn.Sequential(*(Residual(256 // n, 32 // n, 0.17, small) for _ in range(5)))
        self.mixed_6a = Reduction(256 // n, ((384 // n,), (192 // n, 192 // n, 256 // n)))
        self.repeat_2 = nn.Sequential(*(Residual(896 // n, 128 // n, 0.10, wide) for _ in range(10)))
        halves = ((256 // n, 384 // n), (256 // n, 256 // n), (256 // n, 256 // n, 256 // n))
        self.mixed_7a = Reduction(896 // n, halves)
        self.repeat_3 = nn.Sequential(*(Residual(1792 // n, 192 // n, 0.20, wider) for _ in range(5)))
        self.block8 = Residual(1792 // n, 192 // n, 1.0, wider, is_last=True)
        self.last_linear = nn.Linear(1792 // n, 512 // n, bias=False)
        self.last_bn = nn.BatchNorm1d(512 // n, eps=0.001)

    def forward(self, faces: Tensor) -> Tensor:
        """Returns the embeddings [B, 512], of length 1, of faces [B, 3, 160, 160] in [-1, 1]."""
        features = self.maxpool_3a(self.conv2d_2b(self.conv2d_2a(self.conv2d_1a(faces))))
        features = self.repeat_1(self.conv2d_4b(self.conv2d_4a(self.conv2d_3b(features))))
        features = self.repeat_3(self.mixed_7a(self.repeat_2(self.mixed_6a(features))))
        return normalize(self.last_bn(self.last_linear(self.block8(features).mean((2, 3)))), dim=1)


def load_facenet(name: str, device: torch.device) -> InceptionResnetV1:
    """Loads the network from a file, here or on the hub; raises ConfigError where it is missing or does not fit.

    The layer of the classes that it was trained on, `logits`, is left out.
    """
    what = "face embedder"
    file = find_file(what, name)
    weights = {key: value for key, value in read_weights(what, file).items() if not key.startswith("logits.")}
    channels = len(weights[FIRST]) if FIRST in weights else 32
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are replaced
        network = InceptionResnetV1(max(1, 32 // channels))
    put_weights(what, file, network, weights)
    return network.to(device)


def write_tiny_facenet(file: Path, seed: int) -> None:
    """Writes a random network with an eighth of the channels, normalised so that it tells faces apart."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are drawn anew
        network = InceptionResnetV1(NARROW)
    generator = torch.Generator().manual_seed(seed)
    randomise(network, generator)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.momentum = 1.0  # means and variances of the one batch below
    rough = torch.rand(16, 3, 8, 8, generator=generator) * 2 - 1
    with torch.no_grad():
        network(interpolate(rough, (SIDE, SIDE), mode="bilinear"))
    torch.save(network.state_dict(), file)
