"""Qwen2-VL and Qwen2.5-VL as published reward models call them: patches with a gradient, states, and their words."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of pixels: CLIP's


def as_patches(frames: Tensor, vision: Any) -> tuple[Tensor, Tensor]:
    """Returns frames [B, F, 3, H, W] in [0, 1] as the patches of Qwen2-VL, with a gradient, and their grids [B, 3].

    The order is that of its processor: pairs of frames, then squares of patches that become one token.
    """
    size, merge, pair = vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size
    mean, std = (torch.tensor(values, device=frames.device)[:, None, None] for values in (_MEAN, _STD))
    batch, count, channels, height, width = frames.shape
    rows, columns = height // size, width // size
    blocks = ((frames - mean) / std).view(
        batch, count // pair, pair, channels, rows // merge, merge, size, columns // merge, merge, size
    )
    blocks = blocks.permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9)
    grid = torch.tensor([[count // pair, rows, columns]] * batch, device=frames.device)
    return blocks.reshape(-1, channels * pair * size * size), grid


def states_of(body: Any, seen: tuple[Tensor, Tensor], is_seen: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    """Returns the last hidden states [B, L, W] of tokens [B, L], with a gradient to the patches.

    The places of tokens count from 0 on for text and pictures alike, as in the published code, where Qwen itself has
    places in three dimensions.

    Args:
        body: Qwen2-VL or Qwen2.5-VL without the head that predicts words. seen: patches and grids of all pictures, in
            the order of the text. is_seen: [B, L] bool, the tokens that stand for them. mask: [B, L], 1 where tokens
            count, padded on the right.
    """
    patches, grid = seen
    features = body.visual(patches.to(body.dtype), grid_thw=grid).pooler_output
    features = torch.cat(list(features)) if isinstance(features, (tuple, list)) else features
    embedded = body.get_input_embeddings()(tokens)
    embedded = embedded.masked_scatter(is_seen[..., None].expand_as(embedded), features.to(embedded.dtype))
    places = torch.arange(tokens.shape[1], device=tokens.device).expand(3, len(tokens), -1)
    states: Tensor = body.language_model(
        inputs_embeds=embedded, attention_mask=mask, position_ids=places, use_cache=False
    ).last_hidden_state
    return states


def num_words(what: str, file: Path, weights: dict[str, Tensor], base: str, needed: int) -> int:
    """Returns the number of words of a checkpoint, whose marks are new ones; its weights have the names of a `body`.

    Args:
        what: what errors call it. base: the model that it was trained from. needed: words of its tokenizer with marks.
    Raises ConfigError where it has none, or fewer.
    """
    if (words := weights.get("body.language_model.embed_tokens.weight")) is None:
        raise ConfigError(f"{file} does not hold the {what}: no embeddings of words are in it")
    if len(words) < needed:
        raise ConfigError(f"{file} has {len(words)} words, fewer than the {needed} of {base!r} with the marks")
    return len(words)
