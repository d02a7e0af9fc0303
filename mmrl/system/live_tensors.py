"""The bytes of the tensors that are alive, counted as they are made and freed: on any device, `meta` included."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary


class LiveTensors(TorchDispatchMode):
    """Counts the tensors that are made while it is entered, each storage once; what an operation uses inside is not
    seen.

    Tensors that were there before count nothing. Like all modes it belongs to a thread; it can be entered in several,
    one after the other.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.now: int = 0  # bytes
        self.peak: int = 0  # bytes
        self._known: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tree_map_only(Tensor, self._know, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._count, result)
        return result

    def _know(self, tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage is not None and storage not in self._known:
            self._known[storage] = None
        return tensor

    def _count(self, tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage is not None and storage not in self._known:
            self._known[storage] = None
            size = storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, size)
        return tensor

    def _free(self, size: int) -> None:
        self.now -= size


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """Returns the storage of a tensor; None for a sparse one, which has none."""
    return tensor.untyped_storage() if tensor.layout == torch.strided else None
