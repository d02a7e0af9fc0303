"""Attention of a vision tower in one call a layer: each segment of a row (window, image, frame) sees itself alone.

The towers of the Qwen-VL and GLM-V families hand the ends of all segments to an attention whose name holds "flash", and
call any other once for each segment: 4,725 times for an image of 1080p by Qwen2.5-VL. transformers is told of the
function by `AttentionInterface.register`, its public way.

On a CUDA device below float32 it is torch's `varlen_attn`. Elsewhere segments of like length stand side by side, padded
to the longest of their group, in one call of `scaled_dot_product_attention`: windows of Qwen2.5-VL are of one length
but at an image's edges, so a layer makes one call, or a few where lengths differ much. Proven by tests, on a CPU: the
second is the loop over segments to 1e-6, with gradients; the first is called with shapes and dtypes that torch takes.
On an H200 the first took a third of the time of calls for each window, and differed by rounding in bf16: docs/gpu.md.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "mmrl_flash_segments"  # transformers asks names for "flash" before it hands over the ends of segments
MOST_PADDING = 2.0  # of the pairs of places that a group computes, over those that see each other


@dataclass(frozen=True)
class _Group:
    """n segments of one row, padded to the longest of them, L."""

    place: Tensor  # [n, L] int64: where each token stands in the row; 0 for padding
    is_there: Tensor | None  # [n, 1, 1, L] bool; None where nothing is padded


@dataclass(frozen=True)
class Segments:
    """The segments of a row of S tokens, from lengths that the host knows: nothing is read from the device."""

    lengths: tuple[int, ...]
    ends: Tensor  # [n + 1] int32, on the device: 0 and the end of each segment

    @classmethod
    def of(cls, ends: Tensor, device: torch.device) -> "Segments":
        """Makes them of the ends [n + 1] on the host."""
        numbers = ends.tolist()
        lengths = tuple(end - start for start, end in pairwise(numbers))
        return cls(lengths, ends.to(device, torch.int32))

    @property
    def longest(self) -> int:
        """Returns the length of the longest segment."""
        return max(self.lengths)

    @cached_property
    def groups(self) -> tuple[_Group, ...]:
        """Returns the groups of segments of like length, on the device; made once for all layers."""
        starts = [0, *accumulate(self.lengths)]
        return tuple(
            self._group([starts[n] for n in numbers], [self.lengths[n] for n in numbers])
            for numbers in alike(self.lengths)
        )

    @cached_property
    def place(self) -> Tensor:
        """Returns [S] int64, on the device: where each token of the row stands in the groups, one behind the other."""
        place, first = torch.empty(sum(self.lengths), dtype=torch.int64), 0
        starts = [0, *accumulate(self.lengths)]
        for numbers in alike(self.lengths):
            longest = max(self.lengths[n] for n in numbers)
            for n in numbers:
                place[starts[n] : starts[n + 1]] = torch.arange(first, first + self.lengths[n])
                first += longest
        return place.to(self.ends.device)

    def _group(self, starts: Sequence[int], lengths: Sequence[int]) -> _Group:
        step, length = torch.arange(max(lengths)), torch.tensor(lengths)[:, None]
        is_there = step < length  # [n, L]
        place = torch.where(is_there, torch.tensor(starts)[:, None] + step, 0)
        device = self.ends.device
        is_padded = min(lengths) < max(lengths)
        return _Group(place.to(device), is_there[:, None, None].to(device) if is_padded else None)


def alike(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yields groups of segments, by their numbers: each as large as MOST_PADDING allows, the longest segments first."""
    group, pairs, longest = list[int](), 0, 0
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        pairs += lengths[number] ** 2
        if group and (len(group) + 1) * longest**2 > MOST_PADDING * pairs:
            yield group
            group, pairs = [], lengths[number] ** 2
        longest = longest if group else lengths[number]
        group.append(number)
    yield group


def use_segments(tower: Any) -> bool:
    """Switches the layers of a tower that get the ends of segments to this attention; returns whether there are any.

    Layers that run another attention than sdpa, the default of transformers, keep it.
    """
    from transformers import AttentionInterface

    configs = [module.config for module in tower.modules() if takes_segments(module)]
    if not configs or any(config._attn_implementation not in ("sdpa", NAME) for config in configs):
        return False
    AttentionInterface.register(NAME, segment_attention)
    for config in configs:
        config._attn_implementation = NAME
    return True


def takes_segments(module: Any) -> bool:
    """Returns whether a module is an attention layer that hands over the ends of segments where flash is asked for."""
    if not hasattr(module, "scaling") or not hasattr(module, "config"):
        return False
    function = inspect.unwrap(type(module).forward)
    asks = "is_flash_attention_requested" in function.__code__.co_names
    return asks and "cu_seqlens" in inspect.signature(function).parameters


def segment_attention(
    _module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None = None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    segments: Sequence[Segments] = (),
    **_given: Any,  # dropout, 0 in these towers, and what transformers hands to all attention
) -> tuple[Tensor, None]:
    """Returns the attention [1, S, heads, D] of queries, keys and values [1, heads, S, D] of one row, and no weights.

    `segments`: those of the forward pass; the one with these ends is taken. Without it the ends are read.
    """
    own = next((one for one in segments if one.ends is cu_seq_lens_q), None)
    own = own or Segments.of(cu_seq_lens_q.cpu(), query.device)
    if query.is_cuda and query.dtype != torch.float32:
        return by_varlen(own, query, key, value, scaling), None
    return by_groups(own, query, key, value, scaling), None


def by_varlen(segments: Segments, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Returns the attention [1, S, heads, D] by torch's `varlen_attn`."""
    from torch.nn.attention.varlen import varlen_attn

    rows = [one[0].transpose(0, 1).contiguous() for one in (query, key, value)]  # [S, heads, D]
    ends, longest = segments.ends, segments.longest
    found = varlen_attn(rows[0], rows[1], rows[2], ends, ends, longest, longest, scale=scaling)
    assert isinstance(found, Tensor), "no further result was asked for"
    return found[None]


def by_groups(segments: Segments, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Returns the attention [1, S, heads, D] by one call for each group of segments of like length."""
    rows = [one[0].transpose(0, 1) for one in (query, key, value)]  # [S, heads, D]
    parts = []
    for group in segments.groups:
        sides = [one[group.place].transpose(1, 2) for one in rows]  # [n, heads, L, D]
        mask = group.is_there
        found = scaled_dot_product_attention(sides[0], sides[1], sides[2], attn_mask=mask, scale=scaling)
        parts.append(found.transpose(1, 2).flatten(0, 1))  # [n L, heads, D]
    return torch.cat(parts)[segments.place][None]
