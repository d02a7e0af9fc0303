"""The tiny pipelines of all families, by name, and how one is written to a folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from mmrl.core.contracts import ConfigError

from ..text import randomise
from .conditioned import CONDITIONED
from .edits import EDITS
from .family import PipelineFamily
from .images import IMAGES
from .modular import MODULAR
from .videos import VIDEOS

FAMILIES: Mapping[str, PipelineFamily] = MappingProxyType({**IMAGES, **EDITS, **CONDITIONED, **VIDEOS, **MODULAR})


def tiny_pipeline(family: str, seed: int) -> Any:
    """Returns the family's pipeline with random weights, in eval mode and frozen.

    Args:
        family: a name in `FAMILIES`.
        seed: of all weights; torch's global generator is left as it was.
    Raises ConfigError for a family that has no twin.
    """
    if family not in FAMILIES:
        raise ConfigError(f"there is no tiny pipeline of {family!r}; there are those of {', '.join(FAMILIES)}")
    with torch.random.fork_rng(devices=[]):  # the constructors draw weights that are overwritten below
        pipeline = FAMILIES[family].build()
    generator = torch.Generator().manual_seed(seed)
    for _, part in sorted(pipeline.components.items()):  # components come in no order that diffusers promises
        if isinstance(part, nn.Module):
            randomise(part, generator)
    return pipeline


def write_tiny_pipeline(family: str, folder: Path, seed: int) -> None:
    """Writes the family's pipeline with random weights, as its `save_pretrained` does.

    `DiffusionPipeline.from_pretrained(folder)` loads a classic one with every part; a modular one is loaded by
    `ModularPipeline.from_pretrained(folder)` and its `load_components()`, but for guiders, which are never saved, and
    with the blocks that `removed_blocks` names. The folder can be moved.

    Args:
        family: a name in `FAMILIES`.
        folder: the pipeline's; made if it is not there.
        seed: of all weights; the same seed writes the same bytes, and torch's global generator is left as it was.
    Raises ConfigError for a family that has no twin.
    """
    logging.disable_progress_bar()
    pipeline = tiny_pipeline(family, seed)
    if not FAMILIES[family].modular:
        pipeline.save_pretrained(folder)
        return
    pipeline.save_pretrained(str(folder), overwrite_modular_index=True)
    _forget_folder(folder)


def _forget_folder(folder: Path) -> None:
    """Takes the folder's own path out of the index of a modular pipeline, which looks for parts beside it anyway."""
    index = folder / "modular_model_index.json"
    parts = json.loads(index.read_text())
    for part in parts.values():
        if isinstance(part, list) and part[2]["pretrained_model_name_or_path"] == str(folder):
            part[2]["pretrained_model_name_or_path"] = "."
    index.write_text(json.dumps(parts, indent=2, sort_keys=True) + "\n")
