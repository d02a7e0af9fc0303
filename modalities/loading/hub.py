"""What modalities share that hold a model of diffusers or transformers: where it is, its precision, its adapter."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from mmrl.core.contracts import ConfigError, Placement


def source_of(model: str, setting: str, library: str, file: str) -> str:
    """What `from_pretrained` takes: an existing folder, else the name of a hub model, which holds `file`.

    Raises ConfigError, in which `setting` is what the user wrote it under, for a text that can be neither, and for a
    model that is not in the cache and cannot be had.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path)
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ConfigError(f"{setting}: there is no folder {model!r}; give a {library} folder or a hub name")
    _ask_hub(model, setting, file)
    return model


def _ask_hub(model: str, setting: str, file: str) -> None:
    """One question, once: the libraries ask for every file of a model, for each of them six times in half a minute."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(huggingface_hub.try_to_load_from_cache(model, file), str):
        return
    # the error of its HTTP library, which changes its name, and OSError
    unreachable = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    try:
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(model, file), timeout=10)
    except unreachable as error:
        why = " ".join(str(error).split())
        raise ConfigError(
            f"{setting}: there is no model {model!r}, neither as a folder nor in the cache, and the hub gives no "
            f"{file} of it: {why or type(error).__name__}"
        ) from error


def autocast(placement: Placement) -> AbstractContextManager[None]:
    """The run's precision around a network whose trained weights are float32."""
    if placement.dtype == torch.float32:
        return nullcontext()
    return torch.autocast(placement.device.type, placement.dtype)


@contextmanager
def checkpointing(model: nn.Module, kept: str | None) -> Iterator[None]:
    """Checkpoints the layers of a transformers model, but those whose names begin with `kept`.

    Layers checkpoint in training mode only; only they enter it, so that no dropout wakes up.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, GradientCheckpointingLayer) and (kept is None or not name.startswith(kept))
    ]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


@contextmanager
def without_adapter(network: Any) -> Iterator[None]:
    """The network as it was before its LoRA."""
    network.disable_adapters()
    try:
        yield
    finally:
        network.enable_adapters()
