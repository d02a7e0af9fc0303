"""LPIPS: the distance of two images in the features of a network for classification."""

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError

from .checkpoints import find_file, put_weights, read_weights
from .resizing import normalised
from .tiny import randomise

Trunk = Literal["alex", "vgg"]
# After which layers of torchvision's `features` the published measure looks, and how many channels there are.
LAYERS: dict[Trunk, tuple[tuple[int, int], ...]] = {
    "alex": ((2, 64), (5, 192), (8, 384), (10, 256), (12, 256)),
    "vgg": ((4, 64), (9, 128), (16, 256), (23, 512), (30, 512)),
}
# ImageNet's mean and deviation for images in [-1, 1], as published with three digits, for images in [0, 1].
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WHAT, WHAT_LINEAR = "trunk of LPIPS", "linear weights of LPIPS"


class Lpips(nn.Module):
    """The LPIPS distance: sum over layers of the mean over places of sum_c w_c (a_c - b_c)^2, a and b of length 1.

    Zhang et al. 2018, arXiv 1801.03924, version 0.1 of the published weights. Its trunk has no values before they are
    loaded.
    """

    def __init__(self, trunk: Trunk) -> None:
        from torchvision.models import alexnet, vgg16

        super().__init__()
        ends = [end for end, _ in LAYERS[trunk]]
        with torch.device("meta"):  # nobody waits for weights that are replaced, those of the classifier least
            layers: Any = (alexnet if trunk == "alex" else vgg16)(weights=None).features
        for layer in layers:
            if isinstance(layer, nn.ReLU):
                layer.inplace = False  # would overwrite what the gradient needs
        self.features = layers[: ends[-1]].to_empty(device="cpu")
        self.parts = tuple(slice(start, end) for start, end in pairwise([0, *ends]))
        self.linear = nn.ParameterList([torch.zeros(1, channels, 1, 1) for _, channels in LAYERS[trunk]])

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Returns the distances [B], at least 0, of images [B, 3, H, W] in [0, 1]."""
        first, second = (normalised(images, MEAN, STD) for images in (left, right))
        distance = left.new_zeros(len(left))
        for part, weight in zip(self.parts, self.linear, strict=True):
            first, second = self.features[part](first), self.features[part](second)
            squares = (_unit(first) - _unit(second)) ** 2  # [B, C, h, w]
            distance = distance + (weight * squares).sum(1).mean((1, 2))
        return distance


def _unit(features: Tensor) -> Tensor:
    """Scales features to length 1 at each place; where all are 0 they stay 0."""
    length: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return features / (length + 1e-10)


def load_lpips(trunk: Trunk, weights: str | None, linear: str | None, device: torch.device) -> Lpips:
    """Returns the frozen measure in float32.

    Args:
        weights: file of the trunk with torchvision's names, here or on the hub; None: torchvision's ImageNet weights.
        linear: file with the published names; None: that of the installed package lpips.
    Raises ConfigError where one is missing or does not fit.
    """
    measure = Lpips(trunk)
    trunk_weights = _imagenet(trunk) if weights is None else read_weights(WHAT, find_file(WHAT, weights))
    named = Path(weights or f"torchvision's {trunk}")
    wanted = measure.features.state_dict().keys()
    put_weights(
        WHAT,
        named,
        measure.features,
        {n: trunk_weights[f"features.{n}"] for n in wanted if f"features.{n}" in trunk_weights},
    )
    file = _packaged(trunk) if linear is None else find_file(WHAT_LINEAR, linear)
    lines = read_weights(WHAT_LINEAR, file)
    names = {f"lin{number}.model.1.weight": str(number) for number in range(len(measure.linear))}
    put_weights(WHAT_LINEAR, file, measure.linear, {own: lines[name] for name, own in names.items() if name in lines})
    return measure.to(device)


def _imagenet(trunk: Trunk) -> dict[str, Tensor]:
    from torchvision.models import AlexNet_Weights, VGG16_Weights

    source = AlexNet_Weights.IMAGENET1K_V1 if trunk == "alex" else VGG16_Weights.IMAGENET1K_V1
    try:
        state: dict[str, Tensor] = source.get_state_dict(progress=False)
    except (OSError, RuntimeError) as error:  # no network; a download that was cut off
        raise ConfigError(
            f"torchvision cannot load its ImageNet weights of {trunk}: {error}; a file of them may be given instead"
        ) from error
    return state


def _packaged(trunk: Trunk) -> Path:
    """Returns the published linear weights, which the package lpips holds; it is not imported."""
    package = find_spec("lpips")
    if package is None or package.origin is None:
        raise ConfigError(
            "the linear weights of LPIPS are those of the package lpips, which is not installed: `pip install lpips`,"
            " or give a file of them"
        )
    return Path(package.origin).parent / "weights" / "v0.1" / f"{trunk}.pth"


def write_tiny_lpips(folder: Path, trunk: Trunk, seed: int) -> tuple[Path, Path]:
    """Writes a trunk and linear weights, random but of the published layout; returns their files."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    measure, generator = Lpips(trunk), torch.Generator().manual_seed(seed)
    randomise(measure.features, generator)
    linear = {
        f"lin{n}.model.1.weight": torch.rand(weight.shape, generator=generator)
        for n, weight in enumerate(measure.linear)
    }
    save_file({f"features.{n}": w for n, w in measure.features.state_dict().items()}, folder / "trunk.safetensors")
    torch.save(linear, folder / "linear.pth")
    return folder / "trunk.safetensors", folder / "linear.pth"
