"""Loading of a vision-language model and its processor from a folder or the hub; incomplete ones are refused."""

import json
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrl.core.contracts import ConfigError

from ..encoding.families import unread
from .hub import source_of

_LISTED = 3
_LOADING = threading.Lock()  # transformers patches a class while it loads: of two threads, one would leave it patched


def load(model: str, dtype: torch.dtype, attention: str | None, file: str) -> tuple[Any, Any]:
    """Loads model and processor; `file` is a file that the folder of such a model holds.

    Raises ConfigError, which names the model, where they cannot be found or read, are of another kind, or lack weights,
    tokens or the chat template.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForImageTextToText, AutoProcessor
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = source_of(model, "modality.model", "transformers", file)
    try:
        processor = AutoProcessor.from_pretrained(source)
        with _LOADING:
            both: Any = AutoModelForImageTextToText.from_pretrained(  # its annotation names the model alone
                source, dtype=dtype, attn_implementation=attention, output_loading_info=True
            )
    # the error of transformers for a damaged file depends on the damage: weights cut short, of other sizes, a list in
    # place of a mapping
    except (
        OSError,
        ValueError,
        ImportError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        SafetensorError,
    ) as error:
        raise ConfigError(
            f"modality.model: cannot load {model!r} as a vision-language model: {type(error).__name__}: {error}"
        ) from error
    loaded, report = both
    missing = sorted(name for name in report["missing_keys"] if not unread(name, loaded.config))
    if missing:  # transformers fills them with random numbers and prints a table
        raise ConfigError(
            f"modality.model: {model!r} lacks the weights {_some(missing)}; it is damaged or another model"
        )
    _check_processor(model, processor)
    return loaded, processor


def check_finite(model: str, network: nn.Module) -> None:
    """Raises ConfigError for weights that hold NaN or infinity, by their names."""
    weights = [(name, tensor.detach()) for name, tensor in network.named_parameters() if tensor.numel()]
    ends = [torch.stack(tensor.aminmax()).isfinite().all() for _, tensor in weights if tensor.is_floating_point()]
    if torch.stack(ends).all():  # once for all: each value from a GPU is a synchronisation
        return
    broken = [name for name, tensor in weights if not tensor.isfinite().all()]
    raise ConfigError(f"modality.model: {model!r} has weights that are NaN or infinite: {_some(broken)}")


def model_type_of(config: Path) -> str:
    """Returns the `model_type` of a config.json. Raises ConfigError where there is none."""
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"modality.model: cannot read {str(config)!r}: {error}") from error
    kind = found.get("model_type") if isinstance(found, dict) else None
    if not isinstance(kind, str):
        raise ConfigError(f"modality.model: {str(config)!r} has no text 'model_type', which names the architecture")
    return kind


def _check_processor(model: str, processor: Any) -> None:
    """Raises ConfigError for a processor without images, vocabulary or chat template."""
    if not hasattr(processor, "tokenizer") or not hasattr(processor, "image_processor"):
        kind = type(processor).__name__
        raise ConfigError(f"modality.model: {model!r} has no processor of images and text, got {kind}")
    tokenizer = processor.tokenizer
    if not set(tokenizer.get_vocab().values()) - set(tokenizer.added_tokens_decoder):
        raise ConfigError(
            f"modality.model: {model!r} has no vocabulary: the files of its tokenizer are missing or empty"
        )
    if getattr(processor, "chat_template", None) is None:
        raise ConfigError(f"modality.model: {model!r} has no chat template; give an instruction-tuned model")


def _some(names: list[str]) -> str:
    """Returns the first names and the number of the others."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
