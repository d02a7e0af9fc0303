"""The attention of tower and language model, and flex_attention (arXiv 2412.05496) under the mask of a packed row.

A packed row hands transformers a BlockMask, which skips the blocks that no token of a query block sees: an answer pays
for the prompt and itself, not for the other answers.

Proven by tests, on a CPU: the mask is that of the dense way, place by place. Log-probs, entropies and gradients of all
families are those of the plain batch by torch's uncompiled flex_attention, whose backward pass torch refuses on a CPU
(the compiled one has none) and the tests let through; with checkpointing and shards too. Log-probs also by the kernel
compiled for a CPU. On an H200 a small model's gradients in bf16 were those of the dense way, within rounding. Not
proven: the speed of the kernels that are compiled for a GPU, each for minutes, at real size.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError

from ..encoding.network import vision_parts
from ..encoding.segment_attention import use_segments

FLEX = "flex_attention"
ONE_TOKEN = "mmrl_one_token"  # of a compiled decoding step; see one_token_attention.py
SEGMENTS = "segments"  # a tower's: all windows, images and frames of a layer in one call
_TAKES_TREES = ("sdpa", "eager", FLEX)
_BLOCK = 128  # tokens of a block that flex_attention computes or skips
_WITHOUT_BACKWARD = ("cpu", "mps")  # torch raises for a flex_attention there that a gradient is to flow through


def attention_of(model: Any) -> str:
    """Returns the attention that the language model runs."""
    return model.config.get_text_config()._attn_implementation  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Attention(Checked):
    """The attention of each part of a vision-language model, by its name in transformers; null: its default."""

    # `segments`: all windows, images and frames of a layer in one call, for towers of the Qwen-VL and GLM-V kind, whose
    # default it is; `sdpa` calls once for each of them.
    tower: str | None = None
    update: str | None = None  # of the language model, where log-probs are evaluated
    # Of the language model, where answers are sampled; null: that of the update, but sdpa for `flex_attention`.
    rollout: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for flex_attention in a place that it does not serve."""
        super().__post_init__()
        for name, value in (("tower", self.tower), ("rollout", self.rollout)):
            if value == FLEX:
                raise ValueError(f"{name} cannot be {FLEX}: it is for packed rows, which only an update has")

    @classmethod
    def of(cls, setting: "str | Attention | None") -> "Attention":
        """Returns the setting part by part; one name is that of all parts, where they can have it."""
        if isinstance(setting, Attention):
            return setting
        return cls(tower=None if setting in (FLEX, "sdpa") else setting, update=setting)

    @property
    def loaded(self) -> str | None:
        """Returns the attention to load all of a model with: where tower and update agree, else the default."""
        return self.update if self.update == self.tower else None

    def place(self, model: Any, name: str) -> None:
        """Switches the parts of a model on its device to their attention.

        Raises ConfigError where a part cannot have it, or a package that it needs is missing.
        """
        if self.rollout is not None:
            _switch(model, self.rollout, "rollout", is_language=True)
        if self.update == FLEX:
            use_flex(model, name)
        elif self.update is not None or self.rollout is not None:
            _switch(model, self.update or "sdpa", "update", is_language=True)
        if self.tower not in (None, SEGMENTS):
            _switch(model, str(self.tower), "tower", is_language=False)
        parts = [model.get_submodule(part) for part in vision_parts(model)]
        has_segments = self.tower in (None, SEGMENTS) and any([use_segments(part) for part in parts])
        if self.tower == SEGMENTS and not has_segments:
            kind = model.config.model_type
            raise ConfigError(f"modality.attention.tower: {SEGMENTS} does not fit {name!r}: {kind} has none")

    @contextmanager
    def sampling(self, model: Any) -> Iterator[None]:
        """Lets the language model run the attention of rollouts."""
        before = attention_of(model)
        with switched(model, self.rollout or ("sdpa" if before == FLEX else before)):
            yield


@contextmanager
def switched(model: Any, attention: str) -> Iterator[None]:
    """Lets the language model run another attention in the block, which it must be able to."""
    text = model.config.get_text_config()
    before = text._attn_implementation
    text._attn_implementation = attention
    try:
        yield
    finally:
        text._attn_implementation = before


def _switch(model: Any, attention: str, part: str, *, is_language: bool) -> None:
    """Switches the language model, or all other parts, by the public way of transformers."""
    config, text = model.config, model.config.get_text_config()
    keys = [key for key in config.sub_configs if (getattr(config, key, None) is text) == is_language]
    try:
        model.set_attn_implementation(dict.fromkeys(keys or [""], attention))
    except (ValueError, ImportError, KeyError) as error:
        raise ConfigError(f"modality.attention.{part}: {attention!r} cannot be used: {error}") from error


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


def not_as_requested(model: Any, requested: str | Attention | None) -> str:
    """Returns why the language model does not run the attention that was set; an empty text where it does."""
    if Attention.of(requested).update != FLEX or attention_of(model) == FLEX:
        return ""
    return f"{attention_of(model)} in place of {FLEX}, which has no backward pass on {model.device.type}"


def takes_trees(model: Any) -> bool:
    """Returns whether packed rows can be masked."""
    return attention_of(model) in _TAKES_TREES


def bucket(length: int) -> int:
    """Returns the length that a row is padded to for flex_attention: a multiple of 128, at most eight in each octave.

    So rows of many lengths have few shapes, for each of which kernels may be compiled and tuned anew; a row above 1,024
    tokens grows by less than an eighth.
    """
    step = max(_BLOCK, 1 << max(0, length.bit_length() - 4))
    return -(-length // step) * step


def block_mask(sees: Callable[..., Tensor], tokens: Tensor) -> Any:
    """Returns the BlockMask of a rule over rows of tokens [P, T]; compiled, so that [P, T, T] is never held."""
    rows, length = tokens.shape
    return _compiled_mask()(sees, rows, None, length, length, tokens.device)


@cache
def _compiled_mask() -> Callable[..., Any]:
    """Returns the compiled function that makes block masks, the same for all calls."""
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask)
