"""Encoded prompts and condition images in files, by content: what a run has encoded, later runs read."""

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError

_log = logging.getLogger(__name__)
_FORMAT = 1  # of the files; a change of what stands in them changes it
_SAMPLED = 256  # numbers of each weight tensor that make the fingerprint of an encoder
_TREE = "encoding"  # the entry of a file's header that says how its tensors are nested


@dataclass(frozen=True)
class EncodedFiles:
    """A folder of safetensors files, named by the hash of all that the encoding depends on.

    Files are written whole or not at all, and processes that write the same one at a time write the same content. The
    folder has no bound; any file may be deleted at any time, and is made again.
    """

    folder: Path
    identity: str  # of the model and the libraries, see `identity_of`

    def get(self, key: Any, encode: Callable[[], Any], device: torch.device) -> Any:
        """Returns what `encode` returns for a key, from the file where there is one.

        Args:
            key: all that the result depends on beside the model, of plain values and bytes whose `repr` says them.
            encode: returns tensors in lists, tuples and mappings; what holds anything else is not kept.
            device: of the tensors that were on a device when they were encoded.
        """
        digest = hashlib.sha256(repr((_FORMAT, self.identity, key)).encode()).hexdigest()
        path = self.folder / digest[:2] / f"{digest}.safetensors"
        if path.exists():
            try:
                return _read(path, device)
            except Exception as error:  # of whatever a cut or foreign file makes the readers raise
                _log.warning("%s is broken (%s: %s); it is made again", path, type(error).__name__, error)
        made = encode()
        try:
            tree, tensors = _flattened(made)
        except TypeError as error:
            _log.warning("an encoding is not kept in %s: %s", self.folder, error)
            return made
        _write(path, tree, tensors)
        return made


def folder_of(name: str, setting: str) -> Path:
    """Returns the folder of a setting, made if it is not there. Raises ConfigError where it cannot be."""
    folder = Path(name).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot make the folder {name!r}: {error}") from error
    return folder


def identity_of(pipeline: Any, names: Any, precision: torch.dtype) -> str:
    """Returns a hash of all of a pipeline that its encodings depend on.

    That is its class and settings, the versions of its libraries, and the parts `names`, encoders and tokenizers. Of a
    network these are the settings, and of each weight tensor the shape and `_SAMPLED` numbers from all over it: to read
    all bytes of 20 billion numbers takes longer than to encode a prompt, and training changes tensors everywhere.
    """
    import diffusers
    import transformers

    digest = hashlib.sha256()
    said = {
        "pipeline": type(pipeline).__name__,
        "settings": _plain({key: value for key, value in pipeline.config.items() if not key.startswith("_")}),
        "versions": (diffusers.__version__, transformers.__version__),
        "precision": str(precision),
    }
    digest.update(repr(said).encode())
    for name in sorted(names):
        part = pipeline.components.get(name)
        digest.update(name.encode())
        if isinstance(part, nn.Module):
            _add_network(digest, part)
        elif part is not None:
            _add_tokenizer(digest, part)
    return digest.hexdigest()


def _add_network(digest: Any, network: nn.Module) -> None:
    settings = getattr(network, "config", {})
    settings = settings.to_dict() if hasattr(settings, "to_dict") else dict(settings)
    digest.update(repr((type(network).__name__, _plain(settings))).encode())
    for name, tensor in sorted(network.state_dict().items()):
        flat = tensor.detach().flatten()
        step = max(1, len(flat) // _SAMPLED)
        sampled = flat[::step][: _SAMPLED + 1].cpu().contiguous()
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(sampled.view(torch.uint8).numpy().tobytes() if len(sampled) else b"")


def _add_tokenizer(digest: Any, part: Any) -> None:
    """Adds a tokenizer, or a processor with a tokenizer inside."""
    digest.update(type(part).__name__.encode())
    inner = getattr(part, "tokenizer", part)
    backend = getattr(inner, "backend_tokenizer", None)
    if backend is not None:
        digest.update(backend.to_str().encode())
    elif hasattr(inner, "get_vocab"):
        digest.update(repr(sorted(inner.get_vocab().items())).encode())
    for one in (part, inner):
        digest.update(repr(getattr(one, "chat_template", None)).encode())
    for reader in (part, getattr(part, "image_processor", None)):
        if reader is not None and hasattr(reader, "to_dict"):
            digest.update(repr(_plain(reader.to_dict())).encode())


def _plain(value: Any) -> Any:
    """Returns settings in an order of their own, without where they were loaded from."""
    if isinstance(value, Mapping):
        kept = {str(key): item for key, item in value.items() if key not in ("_name_or_path", "name_or_path")}
        return sorted((key, _plain(item)) for key, item in kept.items())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__


def _flattened(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Returns how a value is nested, as JSON can hold it, and its tensors. Raises TypeError for other leaves."""
    tensors: dict[str, Tensor] = {}

    def walk(one: Any) -> Any:
        if isinstance(one, Tensor):
            name = str(len(tensors))
            tensors[name] = one.detach().cpu().contiguous().clone()
            return {"tensor": name, "on_cpu": one.device.type == "cpu"}
        if type(one) in (list, tuple):
            return {type(one).__name__: [walk(item) for item in one]}
        if type(one) is dict and all(isinstance(key, str) for key in one):
            return {"dict": {key: walk(item) for key, item in one.items()}}
        if one is None or type(one) in (bool, int, float, str):
            return {"value": one}
        raise TypeError(f"it holds a {type(one).__name__}")

    return walk(value), tensors


def _nested(tree: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    if "tensor" in tree:
        tensor = tensors[tree["tensor"]]
        return tensor if tree["on_cpu"] else tensor.to(device)
    if "dict" in tree:
        return {key: _nested(item, tensors, device) for key, item in tree["dict"].items()}
    if "value" in tree:
        return tree["value"]
    (kind,) = tree
    items = [_nested(item, tensors, device) for item in tree[kind]]
    return items if kind == "list" else tuple(items)


def _read(path: Path, device: torch.device) -> Any:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tree = json.loads(file.metadata()[_TREE])
        return _nested(tree, {name: file.get_tensor(name) for name in list(file.keys())}, device)


def _write(path: Path, tree: Any, tensors: Mapping[str, Tensor]) -> None:
    """Writes a file whole or not at all; each writer, a process or a thread, has a temporary name of its own."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{uuid.uuid4().hex}-{path.name}")
    try:
        save_file(dict(tensors), temporary, metadata={_TREE: json.dumps(tree)})
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
