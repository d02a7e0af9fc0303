"""Tiny twins of vision-language checkpoints: real classes, a processor that works, random weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from mmrl.core.contracts import ConfigError

from . import gemma, grids, llava, qwen, untried
from . import tiled as tiles
from .text import randomise

# of families that tests run on every path
BUILDERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "qwen2_vl": qwen.qwen2_vl,
    "qwen2_5_vl": qwen.qwen2_5_vl,
    "qwen3_vl": qwen.qwen3_vl,
    "internvl": tiles.internvl,
    "idefics3": tiles.idefics3,
    "llava_onevision": llava.llava_onevision,
    "gemma3": gemma.gemma3,
}
# of families that are compared with their own forward pass when they are loaded
UNLISTED: dict[str, Callable[[], tuple[Any, Any]]] = {
    builder.__name__: builder
    for builder in (
        *(qwen.qwen3_vl_moe, qwen.qwen3_5, qwen.qwen3_5_moe, grids.glm46v, grids.glm4v, grids.mistral3),
        *(grids.kimi_k25, grids.lfm2_vl, grids.minicpmv4_7, llava.llava_next, llava.granite4_vision),
        *(gemma.gemma4, gemma.gemma4_ahead, gemma.paligemma, tiles.aya_vision, tiles.ovis2, tiles.llama4),
        *(tiles.janus, tiles.molmo2, untried.aria),
    )
}
REFUSED: dict[str, Callable[[], tuple[Any, Any]]] = {"mllama": untried.mllama}  # with a reason, when they are loaded
# smolvlm: where the package num2words is installed
TWINS = BUILDERS | UNLISTED | {"smolvlm": tiles.smolvlm} | REFUSED


def write_tiny(family: str, seed: int, folder: Path) -> None:
    """Writes a twin of the family as its `save_pretrained` does: model, tokenizer, processor, chat template.

    Any text has tokens (byte-level BPE); images are at most 56 x 56 pixels, or the family's fixed size made small.

    Args:
        family: a `model_type` of transformers, or `gemma4_ahead` (Gemma 4 as its 31B is). seed: of all weights.
        folder: of the twin; made if it is not there.
    Raises ConfigError for a family that has no twin.
    """
    if family not in TWINS:
        raise ConfigError(f"there is no tiny twin of {family!r}; there are twins of {', '.join(TWINS)}")
    with torch.random.fork_rng(devices=[]):  # the constructors draw weights that are overwritten below
        model, processor = TWINS[family]()
    randomise(model, torch.Generator().manual_seed(seed))
    save(model, processor, folder)


def save(model: Any, processor: Any, folder: Path) -> None:
    """Writes a twin and its processor; its answers end with the tokenizer's end token or with padding."""
    tokenizer = processor.tokenizer
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
