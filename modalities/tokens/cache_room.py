"""Room in a cache: answers write keys and values into space that was set aside, and nothing is copied for each token.

transformers joins all keys and values of a layer with those of each new token. Here a layer has room for a block of
tokens, and is copied when the block is full, one layer after the other, so that only one layer is ever held twice.
Attention gets the part of the room that is in use, a view, so that it computes what it did without room.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from .backbone import copied_layer

BLOCK = 256  # tokens of room that are set aside at once


class RoomyLayer(DynamicLayer):  # type: ignore[misc]  # types of transformers are not read
    """A layer of full attention whose keys and values [n, heads, L, D] are the used parts of larger tensors."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, room: int) -> None:
        """Copies the rows `rows` [n] of keys and values into tensors with room for `room` more tokens."""
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.keys, self.values = keys, values
        self._move(rows, room)

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_given: Any) -> tuple[Tensor, Tensor]:
        """Writes keys and values [n, heads, k, D] of the next tokens behind the others, and returns all of them."""
        length = self.keys.shape[2]
        stop = length + key_states.shape[2]
        if stop > self._all_keys.shape[2]:
            self._move(None, max(BLOCK, key_states.shape[2]))
        self.keys, self.values = self._all_keys[:, :, :stop], self._all_values[:, :, :stop]
        self.keys[:, :, length:] = key_states
        self.values[:, :, length:] = value_states
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keeps the rows `beam_idx` [n], with as much room, in tensors of its own."""
        self._move(beam_idx, self._all_keys.shape[2] - self.keys.shape[2])

    def _move(self, rows: Tensor | None, room: int) -> None:
        """Copies all rows, or some, to tensors with room for `room` more tokens; keys first, so that few are held."""
        self._all_keys = _with_room(self.keys, rows, room)
        self.keys = self._all_keys[:, :, : self.keys.shape[2]]
        self._all_values = _with_room(self.values, rows, room)
        self.values = self._all_values[:, :, : self.values.shape[2]]


class FixedLayer(DynamicLayer):  # type: ignore[misc]  # types of transformers are not read
    """A layer whose keys and values [n, heads, capacity, D] keep their shape; tokens from `place` on are not there."""

    def __init__(self, layer: DynamicLayer, capacity: int, place: Tensor) -> None:
        """Copies a layer; place: [1] int64, where the next token is written, shared by the layers of a cache."""
        super().__init__()
        self.dtype, self.device, self.is_initialized = layer.keys.dtype, layer.keys.device, True
        self.place = place
        self.keys, self.values = (_filled_up(tensor, capacity) for tensor in (layer.keys, layer.values))

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_given: Any) -> tuple[Tensor, Tensor]:
        """Writes keys and values [n, heads, 1, D] of the next token at its place, and returns those of all places."""
        self.keys.index_copy_(2, self.place, key_states)
        self.values.index_copy_(2, self.place, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the length and the offset of what attention is handed."""
        return self.keys.shape[2], 0


def _filled_up(used: Tensor, capacity: int) -> Tensor:
    """Returns [n, heads, capacity, D] with zeros behind: a number that is masked must not be NaN."""
    tensor = used.new_zeros(*used.shape[:2], capacity, used.shape[3])
    tensor[:, :, : used.shape[2]] = used
    if used.is_cuda:
        torch._dynamo.mark_static_address(tensor)
    return tensor


def fixed(cache: Any, room: int, multiple: int) -> Any:
    """Returns a cache of layers of one capacity, a multiple of `multiple` with room for `room` more tokens.

    The given cache, of plain layers of full attention, gives its layers up one by one.
    """
    length = cache.get_seq_length()
    capacity = -(-(length + room) // multiple) * multiple
    place = torch.tensor([length], device=cache.layers[0].keys.device)
    moved = copy.copy(cache)
    moved.layers = []
    while cache.layers:
        layer = cache.layers.pop(0)
        assert type(layer) in (DynamicLayer, RoomyLayer), f"a layer of full attention, got {type(layer).__name__}"
        moved.layers.append(FixedLayer(layer, capacity, place))
    return moved


def places_of(cache: Any) -> tuple[Tensor, int]:
    """Returns the place [1] of the next token of a cache by `fixed`, and its capacity."""
    layer = cache.layers[0]
    return layer.place, layer.keys.shape[2]


def _with_room(used: Tensor, rows: Tensor | None, room: int) -> Tensor:
    """Returns [n, heads, L + room, D] that begins with the rows of `used` [., heads, L, D]; the rest is not set."""
    heads, length, width = used.shape[1:]
    tensor = used.new_empty(len(used) if rows is None else len(rows), heads, length + room, width)
    if rows is None:
        tensor[:, :, :length] = used
    else:
        torch.index_select(used, 0, rows.to(used.device), out=tensor[:, :, :length])
    return tensor


def with_room(cache: Any, rows: Tensor, room: int) -> Any:
    """Returns a cache whose row n is row `rows[n]` of the given one, with room for `room` tokens, at most a block.

    Layers of other kinds than plain full attention (windows, states of linear attention, layers that read those of
    others) are copied without room. The given cache is not changed; no gradient flows.
    """
    copied = copy.copy(cache)
    copied.layers = [_layer_with_room(layer, rows, min(room, BLOCK)) for layer in cache.layers]
    return copied


def _layer_with_room(layer: Any, rows: Tensor, room: int) -> Any:
    if type(layer) is DynamicLayer and layer.get_seq_length() > 0:
        return RoomyLayer(layer.keys, layer.values, rows, room)
    copied = copied_layer(layer)
    copied.reorder_cache(rows)
    return copied
