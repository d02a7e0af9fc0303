"""Published checkpoints: files here or on the hub, read without running code; and the head that two of them have."""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError

SUFFIXES = (".safetensors", ".pth", ".pt")


def check_suffix(field: str, file: str) -> None:
    """Raises ValueError where the setting `field` names no file of weights."""
    if not file.endswith(SUFFIXES):
        raise ValueError(f"{field} must be a file that ends in {', '.join(SUFFIXES)}, got {file!r}")


def find_file(what: str, name: str) -> Path:
    """Returns the path of a file here, or of `owner/repository/file` on the hub.

    Args:
        what: what errors call it, such as "aesthetic head".
    Raises ConfigError where there is no such file.
    """
    if Path(name).is_file():
        return Path(name)
    parts = name.split("/")
    if len(parts) < 3 or Path(name).is_absolute():
        raise ConfigError(f"no {what} {name!r}; allowed are a file or owner/repository/file on the hub")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download("/".join(parts[:2]), "/".join(parts[2:])))
    except (OSError, ValueError) as error:  # no network, no such repository or file; a name that cannot be one
        raise ConfigError(f"no {what} {name!r}: no such file, and the hub says: {error}") from error


def read_weights(what: str, file: Path) -> dict[str, Tensor]:
    """Reads the tensors of a file by their names, from its entry `state_dict` or `model` where it has one.

    Raises ConfigError for a damaged file, one that would run code, or one that holds anything but named tensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        held: Any = torch.load(file, map_location="cpu", weights_only=True)
    # what the two readers raise depends on where the file is damaged
    except (SafetensorError, pickle.UnpicklingError, OSError, EOFError, RuntimeError, ValueError, KeyError) as error:
        raise ConfigError(f"{file} does not hold the {what}: {type(error).__name__}: {error}") from error
    for entry in ("state_dict", "model"):
        if isinstance(held, dict) and isinstance(held.get(entry), dict):
            held = held[entry]
    if not isinstance(held, dict) or not all(isinstance(value, Tensor) for value in held.values()):
        raise ConfigError(f"{file} does not hold the {what}: it is no mapping of names to tensors")
    return held


def put_weights(what: str, file: Path, module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Loads all weights of a module, and freezes it; raises ConfigError where names or shapes differ."""
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigError(f"{file} does not hold the {what}: {error}") from error
    module.eval().requires_grad_(False)


class Head(nn.Module):
    """A head of linear layers width-1024-128-64-16-1 without activations between them, with the published names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 1024),
            nn.Dropout(0.2),
            nn.Linear(1024, 128),
            nn.Dropout(0.2),
            nn.Linear(128, 64),
            nn.Dropout(0.1),
            nn.Linear(64, 16),
            nn.Linear(16, 1),
        )

    def forward(self, embeddings: Tensor) -> Tensor:
        """Returns the scores [B] of embeddings [B, width]."""
        scores: Tensor = self.layers(embeddings)
        return scores.squeeze(1)
