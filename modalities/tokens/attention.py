"""The attention of the language model, and torch's flex_attention (arXiv 2412.05496) under the mask of a packed row.

A packed row hands transformers a BlockMask, which skips the blocks that no token of a query block sees: an answer pays
for the prompt and itself, not for the other answers.

Proven by tests, on a CPU: the mask is that of the dense way, place by place. Log-probs, entropies and gradients of all
families are those of the plain batch by torch's uncompiled flex_attention, whose backward pass torch refuses on a CPU
(the compiled one has none) and the tests let through; with checkpointing and shards too. Log-probs also by the kernel
compiled for a CPU. Not proven: the kernels compiled for a GPU, forward and backward, their precision and their speed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

FLEX = "flex_attention"
_TAKES_TREES = ("sdpa", "eager", FLEX)
_WITHOUT_BACKWARD = ("cpu", "mps")  # torch raises for a flex_attention there that a gradient is to flow through


def attention_of(model: Any) -> str:
    """Returns the attention that the language model runs."""
    return model.config.get_text_config()._attn_implementation  # type: ignore[no-any-return]


def loaded_with(attention: str | None) -> str | None:
    """Returns the attention to load with transformers: its default where `use_flex` follows."""
    return None if attention == FLEX else attention


def use_flex(model: Any, name: str) -> bool:
    """Switches the language model to flex_attention where an update can run with it; returns whether it did.

    Vision towers keep their attention: they hold no tree, and each size of an image would need a compilation. The check
    of transformers is left aside, for it excludes the Qwen-VL families, though their layers use the same interface as
    all others. Raises ConfigError for layers that do not use the interface.
    """
    if not getattr(model, "_supports_attention_backend", False):
        kind = model.config.model_type
        raise ConfigError(f"modality.attention: {FLEX} does not fit {name!r}: {kind} has an attention of its own")
    if model.device.type in _WITHOUT_BACKWARD:
        return False
    model.config.get_text_config()._attn_implementation = FLEX
    return True


def not_as_requested(model: Any, requested: str | None) -> str:
    """Returns why the language model does not run the attention that was set; an empty text where it does."""
    if requested != FLEX or attention_of(model) == FLEX:
        return ""
    return f"{attention_of(model)} in place of {FLEX}, which has no backward pass on {model.device.type}"


def takes_trees(model: Any) -> bool:
    """Returns whether packed rows can be masked."""
    return attention_of(model) in _TAKES_TREES


def block_mask(sees: Callable[..., Tensor], tokens: Tensor) -> Any:
    """Returns the BlockMask of a rule over rows of tokens [P, T]; compiled, so that [P, T, T] is never held."""
    from torch.nn.attention.flex_attention import create_block_mask

    rows, length = tokens.shape
    return torch.compile(create_block_mask)(sees, rows, None, length, length, tokens.device)
