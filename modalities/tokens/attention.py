"""Which attention the language model runs, and torch's flex_attention (arXiv 2412.05496) under a packed row's mask.

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
    """The attention that the language model runs."""
    return model.config.get_text_config()._attn_implementation  # type: ignore[no-any-return]


def loaded_with(attention: str | None) -> str | None:
    """What transformers is asked to load: its default where `use_flex` comes after."""
    return None if attention == FLEX else attention


def use_flex(model: Any, name: str) -> bool:
    """Puts the language model on flex_attention where an update can run there; False where it stays as it was.

    Towers stay as they were: no tree is in them, and images of many sizes would each be compiled for. So does the check
    of transformers, which leaves out the Qwen-VL families though their layers ask the same interface as all others.
    Raises ConfigError for layers that do not ask it.
    """
    if not getattr(model, "_supports_attention_backend", False):
        kind = model.config.model_type
        raise ConfigError(f"modality.attention: {FLEX} does not fit {name!r}: {kind} has an attention of its own")
    if model.device.type in _WITHOUT_BACKWARD:
        return False
    model.config.get_text_config()._attn_implementation = FLEX
    return True


def not_as_requested(model: Any, asked: str | None) -> str:
    """Why the language model does not run the attention that was asked for; empty where it does."""
    if asked != FLEX or attention_of(model) == FLEX:
        return ""
    return f"{attention_of(model)} in place of {FLEX}, which has no backward pass on {model.device.type}"


def takes_trees(model: Any) -> bool:
    """Whether packed rows can be masked."""
    return attention_of(model) in _TAKES_TREES


def block_mask(sees: Callable[..., Tensor], tokens: Tensor) -> Any:
    """The BlockMask of a rule over rows of tokens [P, T]; compiled, it never holds [P, T, T]."""
    from torch.nn.attention.flex_attention import create_block_mask

    rows, length = tokens.shape
    return torch.compile(create_block_mask)(sees, rows, None, length, length, tokens.device)
