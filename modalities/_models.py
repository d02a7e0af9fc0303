"""What modalities share that hold a model of diffusers or transformers: where it is, its precision, its adapter."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from mmrl.contracts import ConfigError, Placement


def source_of(model: str, setting: str, library: str) -> str:
    """What `from_pretrained` takes: an existing folder, else a hub name.

    Raises ConfigError, in which `setting` is what the user wrote it under, for a text that can be neither.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path)
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ConfigError(f"{setting}: there is no folder {model!r}; give a {library} folder or a hub name")
    return model


def autocast(placement: Placement) -> AbstractContextManager[None]:
    """The run's precision around a network whose trained weights are float32."""
    if placement.dtype == torch.float32:
        return nullcontext()
    return torch.autocast(placement.device.type, placement.dtype)


@contextmanager
def without_adapter(network: Any) -> Iterator[None]:
    """The network as it was before its LoRA."""
    network.disable_adapters()
    try:
        yield
    finally:
        network.enable_adapters()
