"""How a pipeline of diffusers is opened, classic or modular, and which of its parts go where."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrl.core.contracts import ConfigError
from mmrl.system.spelling import near

from ..diffusers_policy import absent_parts
from ..policy import LATENT_DTYPES
from .modular import without_blocks
from .quiet import without_bars
from .settings import Settings

_NETWORKS = ("transformer", "transformer_2", "unet")
_TEXT_ENCODER = "text_encoder"  # how the names of text encoders begin
INDEX_OF_MODULAR = "modular_model_index.json"


def open_pipeline(settings: Settings, source: str, trained: torch.dtype, frozen: torch.dtype) -> Any:
    """Returns the pipeline in a folder, with the dtypes of networks and of other parts; the VAE is in `vae_dtype`.

    Raises OSError, ValueError or TypeError where it cannot be loaded.
    """
    import diffusers

    dtypes = {**dict.fromkeys(_NETWORKS, trained), "vae": LATENT_DTYPES[settings.vae_dtype], "default": frozen}
    if settings.modular:
        modular: Any = diffusers.ModularPipeline
        pipeline = without_blocks(modular.from_pretrained(source), settings.removed_blocks)
        pipeline.load_components(dtype=dtypes)
        without_bars(pipeline._blocks)
    else:
        loader: Any = diffusers.DiffusionPipeline
        absent = absent_parts(Path(source)) if Path(source).is_dir() else {}
        pipeline = loader.from_pretrained(source, dtype=dtypes, **absent)
    if getattr(pipeline, "scheduler", None) is None:
        raise ValueError("it has no scheduler")
    return pipeline


def place_parts(pipeline: Any, device: torch.device) -> None:
    """Moves all parts to a device but text encoders, which go there when they encode."""
    for name, part in pipeline.components.items():
        if isinstance(part, nn.Module) and not name.startswith(_TEXT_ENCODER):
            part.to(device)


def networks_of(settings: Settings, pipeline: Any) -> tuple[str, ...]:
    """Returns the names of the parts that are trained: the one that the settings name, or those that there are.

    Raises ConfigError for a network that the pipeline does not have.
    """
    name = settings.network
    if name is None:
        return tuple(known for known in _NETWORKS if getattr(pipeline, known, None) is not None)
    parts = [part for part, module in pipeline.components.items() if isinstance(module, nn.Module)]
    if name not in parts:
        raise ConfigError(
            f"{settings.where}.network: {settings.model!r} has no network {name!r}{near(name, parts)}; "
            f"it has {', '.join(parts)}"
        )
    return (name,)


def text_encoders_of(pipeline: Any) -> tuple[str, ...]:
    """Returns the names of the text encoders."""
    return tuple(name for name in pipeline.components if name.startswith(_TEXT_ENCODER))
