"""Tiny twins of families that mmrl does not list: real classes, random weights, processors that work."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from mmrl.modalities.tiny.text import randomise
from mmrl.modalities.tiny.vision_language import save
from tests.modalities import unlisted_grids as grids
from tests.modalities import unlisted_tiles as tiles

BUILDERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    builder.__name__: builder
    for builder in (
        *(grids.qwen3_vl_moe, grids.qwen3_5, grids.qwen3_5_moe, grids.glm46v, grids.glm4v, grids.mistral3),
        *(grids.kimi_k25, grids.lfm2_vl, grids.minicpmv4_7),
        *(tiles.gemma4, tiles.gemma4_ahead, tiles.paligemma, tiles.aya_vision, tiles.llava_next, tiles.granite4_vision),
        *(tiles.ovis2, tiles.llama4, tiles.janus, tiles.molmo2),
    )
}
_FOLDERS = TemporaryDirectory(prefix="mmrl-unlisted-")  # removed when the tests end


@cache
def unlisted(family: str) -> Path:
    """The folder of a family's tiny twin, written once."""
    folder = Path(_FOLDERS.name) / family
    with torch.random.fork_rng(devices=[]):
        model, processor = BUILDERS[family]()
    randomise(model, torch.Generator().manual_seed(1))
    _enlarge_experts(model)
    save(model, processor, folder)
    return folder


@torch.no_grad()
def _enlarge_experts(model: nn.Module) -> None:
    """Experts are matrices in a stack, of which `randomise` counts all numbers of the first as inputs."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 3 and "expert" in name:
            parameter.mul_(parameter.shape[1] ** 0.5)
