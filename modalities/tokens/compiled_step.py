"""One token of each answer by a compiled network, whose inputs have the same shapes from one token to the next.

`torch.compile` makes a program for each shape that it meets, so that the cache has all its room from the start,
attention gets the whole of it under a mask, and the place of the next token is a tensor. On a GPU the program is a CUDA
graph (`mode="reduce-overhead"`).

Proven by tests, on a CPU: answers and log-probs are those of the network as it is, by backends that compile no kernels;
the number of programs is bounded. Kernels and CUDA graphs ran on an H200, with another attention.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

from ..encoding.network import is_whole
from .attention import ONE_TOKEN, attention_of, switched
from .backbone import Backbone, position_ids

MULTIPLE = 64  # tokens: lengths of caches are rounded up to it, so that few shapes occur


def check_compiled(backbone: Backbone, model: str) -> None:
    """Raises ConfigError for a model whose step cannot be compiled at fixed shapes."""
    why = None
    if is_whole(backbone.model) or not backbone.goes_by_the_mask:
        why = f"{backbone.model.config.model_type} has layers with a window, a state or an output layer inside"
    elif attention_of(backbone.model) != "sdpa":
        why = f"its attention is {attention_of(backbone.model)}, and only sdpa takes the mask of a compiled step"
    if why is not None:
        raise ConfigError(f"modality.compile: the decoding step of {model!r} cannot be compiled: {why}; leave it out")


@dataclass(frozen=True)
class CompiledStep:
    """A network without output head, compiled for one token of each answer."""

    backbone: Backbone
    network: Callable[..., Any]

    @classmethod
    def of(cls, backbone: Backbone, backend: Any) -> "CompiledStep":
        """Compiles the network by a backend of torch at the first calls; its weights may change, not their dtypes."""
        from . import one_token_attention  # noqa: F401  # tells transformers of it

        if backend == "inductor" and backbone.device.type == "cuda":
            return cls(backbone, torch.compile(backbone.network, mode="reduce-overhead"))
        return cls(backbone, torch.compile(backbone.network, backend=backend))

    def with_fixed_room(self, cache: Any, room: int) -> Any:
        """Returns a cache of the same content with room for `room` more tokens, rounded up."""
        from .cache_room import fixed

        return fixed(cache, room, MULTIPLE)

    def __call__(self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Returns hidden states [n, 1, H] of the next tokens [n, 1] at positions [A, n, 1], and advances the cache.

        mask: [n, L] int64, 1 where the cache will hold a token, of all tokens that may come.
        """
        from .cache_room import places_of

        place, capacity = places_of(cache)
        seen = torch.nn.functional.pad(mask, (0, capacity - mask.shape[1])).bool()
        seen = seen & (torch.arange(capacity, device=mask.device) <= place)
        if mask.is_cuda:
            torch.compiler.cudagraph_mark_step_begin()
        with switched(self.backbone.model, ONE_TOKEN):
            output = self.network(
                input_ids=tokens,
                attention_mask=seen[:, None, None],
                position_ids=position_ids(positions),
                past_key_values=cache,
                use_cache=True,
            )
        place.add_(1)
        return output.last_hidden_state.clone()  # type: ignore[no-any-return]  # a graph writes its output anew
