"""Models of diffusers and transformers: their source, their precision, checkpointing, adapters switched off."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError, Placement


def source_of(model: str, setting: str, library: str, file: str) -> str:
    """Returns the argument of `from_pretrained`: an existing folder, else the name of a hub model, which holds `file`.

    Raises ConfigError, which names the `setting`, for a text that can be neither, and for a model that is neither in
    the cache nor on the hub.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path)
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ConfigError(f"{setting}: there is no folder {model!r}; give a {library} folder or a hub name")
    _ask_hub(model, setting, file)
    return model


def cast_weights(module: nn.Module, dtype: torch.dtype) -> None:
    """Casts what a checkpoint holds of a module, as `from_pretrained` does.

    `Module.to` would cast computed buffers, too: frequencies of positions would be rounded, and complex ones lose their
    imaginary parts (Llama 4).
    """
    for tensor in module.state_dict(keep_vars=True).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)


def _ask_hub(model: str, setting: str, file: str) -> None:
    """Asks the hub once for one file: the libraries ask for every file, six times each within half a minute.

    Raises ConfigError where the hub does not have the file.
    """
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
    """Returns a context with the run's precision, for a network whose trained weights are float32."""
    if placement.dtype == torch.float32:
        return nullcontext()
    return torch.autocast(placement.device.type, placement.dtype)


@contextmanager
def moved(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Has copies of a frozen module's tensors on a device in their place, so that nothing is copied back."""
    owners: list[dict[str, Any]] = [owner for part in module.modules() for owner in (part._parameters, part._buffers)]
    before = [(owner, name, kept) for owner in owners for name, kept in owner.items() if kept is not None]
    there = dict[Tensor, Tensor]()
    for owner, name, kept in before:
        if kept not in there:  # else several modules share it
            copied = kept.detach().to(device)
            there[kept] = nn.Parameter(copied, requires_grad=False) if isinstance(kept, nn.Parameter) else copied
        owner[name] = there[kept]
    try:
        yield
    finally:
        for owner, name, kept in before:
            owner[name] = kept


@contextmanager
def checkpointing(model: nn.Module, kept: str | None) -> Iterator[None]:
    """Checkpoints the layers of a transformers model, except those whose names begin with `kept`.

    Layers checkpoint in training mode only; only the layers enter that mode, so that no dropout is active.
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
    """Switches the LoRA of a network off."""
    network.disable_adapters()
    try:
        yield
    finally:
        network.enable_adapters()
