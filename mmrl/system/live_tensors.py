"""The bytes of the tensors that are alive, counted as they are made and freed: on any device, `meta` included."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
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
        _each_tensor(args, self._know)
        if kwargs:
            _each_tensor(kwargs.values(), self._know)
        result = func(*args, **(kwargs or {}))
        _each_tensor((result,), self._count)
        return result

    def _know(self, tensor: Tensor) -> None:
        storage = _storage(tensor)
        if storage is not None and storage not in self._known:
            self._known[storage] = None

    def _count(self, tensor: Tensor) -> None:
        storage = _storage(tensor)
        if storage is not None and storage not in self._known:
            self._known[storage] = None
            size = storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size


def _each_tensor(values: Iterable[Any], function: Callable[[Tensor], None]) -> None:
    """Calls a function with each tensor of an operation's arguments or results: these are flat, or lists of tensors.

    `tree_map` of torch takes four times as long as the rest of the count.
    """
    for value in values:
        if isinstance(value, Tensor):
            function(value)
        elif isinstance(value, tuple | list):
            _each_tensor(value, function)


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """Returns the storage of a tensor; None for a sparse one, which has none."""
    return tensor.untyped_storage() if tensor.layout == torch.strided else None
