"""The attention of one token of each answer on a cache: heads that share keys and values are rows of one call.

Under a mask, transformers repeats keys and values for each head of a compiled network. On an H200 that was 77% of the
time of a compiled step of Qwen2.5-VL-7B, with 64 answers behind 1,300 tokens, which was no faster than one that is not
compiled: 28.6 and 26.9 ms (docs/gpu.md).

Proven by a test, on a CPU: it is a loop over heads. Not proven: its speed on a GPU.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .attention import ONE_TOKEN

_UNSHARED = torch.nn.Module()  # a layer whose heads share nothing, to transformers


def one_token_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """Returns [n, 1, heads, D], the attention of one token by `sdpa`: heads that share keys are rows of one call.

    query: [n, heads, 1, D]; key, value: [n, shared, L, D], of which each serves heads / shared successive heads;
    attention_mask: [n, 1, 1, L] bool, True where a place is seen. settings: those of transformers' interface.
    """
    rows = query.reshape(len(query), key.shape[1], -1, query.shape[-1])  # [n, shared, heads / shared, D]
    output, _ = sdpa_attention_forward(_UNSHARED, rows, key, value, attention_mask, **settings)
    return output.transpose(1, 2).reshape(len(query), 1, query.shape[1], -1), None


AttentionInterface.register(ONE_TOKEN, one_token_attention)
