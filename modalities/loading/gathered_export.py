"""Weights that processes share, written as one model's folder: each tensor is whole for a moment, on one after another.

Every process gathers each tensor; the one that has a folder writes it, and no process ever holds the whole model.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, RunError
from mmrl.core.weights import whole

_FILE_BYTES = 2**30  # of one file, and so of what the writing process holds beside its shard
_INDEX = "model.safetensors.index.json"


@torch.no_grad()
def write_gathered(model: Any, folder: Path | None, dtype: torch.dtype, file_bytes: int = _FILE_BYTES) -> None:
    """Writes all weights of a model of transformers as its `save_pretrained` names them. All processes must call it.

    A disk that fails ends no gathering, for which the others would wait; what it said is raised at the end.

    Args:
        folder: of the model, with its config; None: another process writes. dtype: of the written weights.
        file_bytes: in a file; larger tensors have one of their own.
    Raises ConfigError for a family whose checkpoints hold tensors that are put together from several ones, before
    anything is gathered, and RunError where the folder cannot be written.
    """
    saved = saved_names(model)
    writer = None if folder is None else _Writer(folder, file_bytes)
    for name, tensor in _stored(model):
        full = whole(tensor.detach())
        if writer is not None:
            writer.add(saved[name], full.to("cpu", dtype if full.is_floating_point() else full.dtype))
    if writer is not None:
        writer.finish(model)


@torch.no_grad()
def gathered_adapter(model: Any) -> dict[str, Tensor]:
    """Returns the tensors of a model's adapter, whole, on the CPU. All processes must call it."""
    return {name: whole(tensor.detach()).cpu() for name, tensor in model.named_parameters() if "lora_" in name}


def _stored(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a checkpoint by name; tied ones once, by their first name."""
    yield from model.named_parameters()
    kept = model.state_dict().keys()
    yield from ((name, tensor) for name, tensor in model.named_buffers() if name in kept)


def saved_names(model: Any) -> dict[str, str]:
    """Returns the names of a model's tensors in its checkpoints.

    Raises ConfigError where a tensor of a checkpoint is put together from several ones, or is a part of one.
    """
    from transformers.core_model_loading import revert_weight_conversion

    names = [name for name, _ in _stored(model)]
    numbered = {name: torch.tensor(number) for number, name in enumerate(names)}
    try:
        found: Mapping[str, Tensor] = revert_weight_conversion(model, numbered)
        by_number = {int(tensor): name for name, tensor in found.items()}
    except (RuntimeError, ValueError, IndexError):  # numbers cannot be cut or stacked as weights are
        by_number = {}
    if len(by_number) < len(names):
        raise ConfigError(
            f"sharding 'full' with modality.engine: checkpoints of {type(model).__name__} hold other tensors than the "
            "network; set sharding to none, or train a LoRA"
        )
    return {name: by_number[number] for number, name in enumerate(names)}


@dataclass
class _Writer:
    """The files of a model, one after another; a failure stays until the end."""

    folder: Path
    file_bytes: int
    _held: dict[str, Tensor] = field(default_factory=dict)
    _file_of: dict[str, str] = field(default_factory=dict)
    _size: int = 0  # of all tensors
    _error: Exception | None = None

    def add(self, name: str, tensor: Tensor) -> None:
        if sum(own.nbytes for own in self._held.values()) + tensor.nbytes > self.file_bytes:
            self._flush()
        self._held[name] = tensor.contiguous()
        self._size += tensor.nbytes

    def finish(self, model: Any) -> None:
        """Writes the rest, the index and the configs. Raises RunError for the first failure of all."""
        self._flush()
        index = {"metadata": {"total_size": self._size}, "weight_map": self._file_of}
        if self._error is None:
            try:
                (self.folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")
                model.config.save_pretrained(self.folder)
                if model.can_generate():
                    model.generation_config.save_pretrained(self.folder)
            except OSError as error:
                self._error = error
        if self._error is not None:
            raise RunError(f"engine.folder: cannot write weights to {self.folder}: {self._error}") from self._error

    def _flush(self) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        file = f"model-{len(set(self._file_of.values())) + 1:05}.safetensors"
        if self._held and self._error is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                save_file(self._held, self.folder / file, {"format": "pt"})
            except (OSError, SafetensorError) as error:
                self._error = error
        self._file_of |= dict.fromkeys(self._held, file)
        self._held = {}
