"""LPIPS of torchmetrics: the distance of two images in the features of a network for classification.

Not by the package lpips, whose gradient is NaN at places where all features are 0; tests compare with it.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mmrl.core.contracts import ConfigError

from .checkpoints import find_file, put_weights, read_weights
from .tiny import randomise

Trunk = Literal["alex", "vgg"]
WHAT, WHAT_LINEAR = "trunk of LPIPS", "linear weights of LPIPS"


def measure_of(trunk: Trunk, *, is_pretrained: bool = False) -> Any:
    """Returns the frozen measure: images [B, 3, H, W] in [0, 1], twice, and `normalize=True` to distances [B, 1, 1, 1].

    Zhang et al. 2018, arXiv 1801.03924: sum over layers of the mean over places of sum_c w_c (a_c - b_c)^2, a and b of
    length 1. The linear weights w are version 0.1 of the published ones; the trunk has torchvision's ImageNet weights,
    or random ones unless `is_pretrained`. Raises ConfigError where torchmetrics or the weights cannot be had.
    """
    try:
        from torchmetrics.functional.image.lpips import _LPIPS  # the public class has no trunk but that of ImageNet
    except ModuleNotFoundError as error:
        raise ConfigError("measure lpips needs the package torchmetrics: `pip install 'mmrl[lpips]'`") from error
    try:
        with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are replaced
            return _LPIPS(net=trunk, pnet_rand=not is_pretrained)
    except (OSError, RuntimeError) as error:  # no network; a download that was cut off
        raise ConfigError(
            f"torchvision cannot load its ImageNet weights of {trunk}: {error}; a file of them may be given instead"
        ) from error


def load_lpips(trunk: Trunk, weights: str | None, linear: str | None, device: torch.device) -> Any:
    """Returns the frozen measure in float32 (`measure_of`).

    Args:
        weights: file of the trunk with torchvision's names, here or on the hub; None: torchvision's ImageNet weights.
        linear: file with the published names; None: those of torchmetrics.
    Raises ConfigError where one is missing or does not fit.
    """
    measure = measure_of(trunk, is_pretrained=weights is None)
    if weights is not None:
        file = find_file(WHAT, weights)
        given, names = read_weights(WHAT, file), _names(measure)
        put_weights(WHAT, file, measure.net, {own: given[name] for own, name in names.items() if name in given})
    if linear is not None:
        file, layers = find_file(WHAT_LINEAR, linear), _layers(measure)
        given = read_weights(WHAT_LINEAR, file)
        put_weights(WHAT_LINEAR, file, layers, {name: given[name] for name in layers.state_dict() if name in given})
    return measure.to(device)


def _names(measure: Any) -> dict[str, str]:
    """Returns torchvision's name of each weight of the trunk, by torchmetrics' name."""
    return {name: f"features.{name.partition('.')[2]}" for name in measure.net.state_dict()}


def _layers(measure: Any) -> nn.ModuleDict:
    """Returns the linear layers by their published names."""
    return nn.ModuleDict({f"lin{number}": layer for number, layer in enumerate(measure.lins)})


def write_tiny_lpips(folder: Path, trunk: Trunk, seed: int) -> tuple[Path, Path]:
    """Writes a trunk and linear weights, random but of the published layout; returns their files."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    measure, generator = measure_of(trunk), torch.Generator().manual_seed(seed)
    randomise(measure.net, generator)
    names, trunk_weights = _names(measure), measure.net.state_dict()
    linear = {name: torch.rand(w.shape, generator=generator) for name, w in _layers(measure).state_dict().items()}
    save_file({names[own]: weight for own, weight in trunk_weights.items()}, folder / "trunk.safetensors")
    torch.save(linear, folder / "linear.pth")
    return folder / "trunk.safetensors", folder / "linear.pth"
