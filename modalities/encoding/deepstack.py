"""Features of a vision tower that are added to hidden states of the decoder, without a read of the host.

The decoders of Qwen3-VL and its kin (DeepStack, arXiv 2406.04334) select places by a mask, for which the host waits
until the device has counted them: five times for each such layer, forwards and backwards.
"""

from typing import Any

import torch
from torch import Tensor

METHOD = "_deepstack_process"  # of the decoders of transformers that have one


def use_places(decoder: Any) -> int:
    """Lets the modules of a decoder that add features where a mask says so do it by `add_features`; returns how many.

    A method of that name that gives something else for random tensors is left as it is.
    """
    found = [module for module in decoder.modules() if hasattr(module, METHOD) and _is_sum(getattr(module, METHOD))]
    for module in found:
        setattr(module, METHOD, add_features)
    return len(found)


def add_features(hidden_states: Tensor, visual_pos_masks: Tensor, visual_embeds: Tensor) -> Tensor:
    """Returns hidden states [B, S, H] plus features [n, H] at the n places of a mask [B, S], row by row."""
    if not visual_embeds.shape[0]:
        return hidden_states
    mask = visual_pos_masks.to(hidden_states.device)
    features = visual_embeds.to(hidden_states.device, hidden_states.dtype)
    place = mask.flatten().cumsum(0).sub(1).view(mask.shape)  # of the feature before, or the last, where there is none
    return hidden_states + torch.where(mask[..., None], features[place], 0)


def _is_sum(method: Any) -> bool:
    generator = torch.Generator().manual_seed(0)
    hidden, features = torch.randn(2, 3, 4, generator=generator), torch.randn(3, 4, generator=generator)
    mask = torch.tensor([[True, False, True], [False, True, False]])
    try:
        given = method(hidden, mask, features)
    except (TypeError, ValueError, IndexError, RuntimeError):  # it takes other tensors
        return False
    return isinstance(given, Tensor) and torch.equal(given, add_features(hidden, mask, features))
