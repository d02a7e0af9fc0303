"""The trained tensors of a policy and their copies: old, reference, averaged; whole, or a shard of each."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn

from mmrl.core.data import WeightsName

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether this process holds a part of it; the class takes half a second to import, and so it is done here."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def whole(parameter: Tensor) -> Tensor:
    """The full tensor of a sharded parameter, for use outside of a network's own forward call; any other as it is.

    Its gradient is summed over processes and cut into shards again. Every process must call it, in the same order.
    """
    from torch.distributed.tensor import Partial

    return parameter.full_tensor(grad_placements=[Partial()]) if is_sharded(parameter) else parameter


def shard_of(tensor: Tensor, like: Tensor) -> Tensor:
    """The shard of the full tensor that this process holds where `like` is sharded, else the tensor. Sends nothing."""
    from torch.distributed.tensor import distribute_tensor

    if is_sharded(like):
        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return tensor


def _local(tensor: Tensor) -> Tensor:
    """The numbers that this process holds of a tensor; the same storage."""
    return tensor.to_local() if is_sharded(tensor) else tensor


class Weights:
    """Puts copies of the trained tensors in place of them: `with weights("old"): ...`, nestable, restored on error.

    Only what is trained is copied (a LoRA's own tensors, or the full network). The trained tensors keep their storage,
    so an optimizer never notices. Where they are sharded so are the copies, which are then written into that storage
    (`fully_shard` gathers from there and would not see another); the trained numbers wait beside it.
    """

    def __init__(
        self,
        trained: Mapping[str, nn.Parameter],
        *,
        adapter_off: Callable[[], AbstractContextManager[None]] | None = None,
        rate_scale: Mapping[str, float] | None = None,
    ) -> None:
        """`trained`: parameters by name. `adapter_off`: how an adapter is switched off, which gives the reference.

        `rate_scale`: by parameter name, what its learning rate is multiplied by, where that is not 1.
        """
        self.parameters = dict(trained)
        self.rate_scale = {name: (rate_scale or {}).get(name, 1.0) for name in self.parameters}
        self._storage = {name: parameter.data for name, parameter in trained.items()}
        self._is_sharded = False
        self._copies: dict[WeightsName, dict[str, Tensor]] = {}
        self._adapter_off = adapter_off
        self._placed: WeightsName = "trained"

    def shard(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Takes the sharded parameters that now stand in the network, by the same names, before any copy is made."""
        assert not self._copies and parameters.keys() == self.parameters.keys(), "other weights, or copies of them"
        self.parameters = {name: parameters[name] for name in self.parameters}
        self._is_sharded, self._storage = True, {}

    def keep(self, which: WeightsName) -> None:
        """Makes the copy `which`, equal to the trained tensors now; does nothing where it is there or not needed."""
        if which == "trained" or which in self._copies or (which == "reference" and self._adapter_off):
            return
        self._copies[which] = {name: tensor.detach().clone() for name, tensor in self.tensors("trained").items()}

    def start_from(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads the trained tensors of an earlier run as the start of this one, before any copy is made.

        The reference is then a copy of them, as in a full training: an adapter switched off would be the model from
        before that run. Raises ValueError when names or shapes differ.
        """
        assert not self._copies, "copies of the weights from before the start"
        self.load("trained", tensors)
        self._adapter_off = None

    def has(self, which: WeightsName) -> bool:
        """Whether `with weights(which)` would work."""
        return which == "trained" or which in self._copies or (which == "reference" and self._adapter_off is not None)

    @torch.no_grad()
    def average(self, which: WeightsName, decay: float) -> None:
        """copy <- decay * copy + (1 - decay) * trained, in float32; decay 0 copies exactly, decay 1 freezes."""
        copies, trained = self._copies[which], self.tensors("trained")
        ends = [_local(trained[name]) for name in copies]
        torch._foreach_lerp_([_local(copy) for copy in copies.values()], ends, 1 - decay)

    @contextmanager
    def __call__(self, which: WeightsName) -> Iterator[None]:
        """Puts the named tensors in place inside the block."""
        if which == "reference" and which not in self._copies and self._adapter_off is not None:
            with self._adapter_off():
                yield
            return
        before = self._placed
        self._place(which)
        try:
            yield
        finally:
            self._place(before)

    def tensors(self, which: WeightsName) -> dict[str, Tensor]:
        """The tensors themselves, not copies, by name; DTensors where they are sharded."""
        if which != "trained":
            return dict(self._copies[which])
        if self._is_sharded and self._placed == "trained":
            return {name: parameter.detach() for name, parameter in self.parameters.items()}
        return dict(self._storage)

    @property
    def kept(self) -> list[WeightsName]:
        """The copies that are there."""
        return sorted(self._copies)

    @torch.no_grad()
    def load(self, which: WeightsName, tensors: Mapping[str, Tensor]) -> None:
        """Overwrites the named tensors in place. Raises ValueError when names or shapes differ."""
        self.keep(which)
        mine = self.tensors(which)
        if wrong := sorted(set(mine) ^ set(tensors)):
            raise ValueError(f"{which} weights do not fit the model: {len(wrong)} names differ, such as {wrong[0]!r}")
        for name, tensor in mine.items():
            if tensor.shape != tensors[name].shape:
                raise ValueError(
                    f"{which} weights do not fit the model: {name!r} has shape {list(tensors[name].shape)}, "
                    f"needed is {list(tensor.shape)}"
                )
            _local(tensor).copy_(_local(shard_of(tensors[name], tensor)))

    def _place(self, which: WeightsName) -> None:
        if which == self._placed:
            return
        if self._is_sharded:
            self._write(which)
        else:
            tensors = self.tensors(which)
            for name, parameter in self.parameters.items():
                parameter.data = tensors[name]
        self._placed = which

    @torch.no_grad()
    def _write(self, which: WeightsName) -> None:
        """Writes the shards of the named tensors into the parameters' own storage."""
        tensors = self.tensors(which)
        if self._placed == "trained":
            self._storage = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            _local(parameter.detach()).copy_(_local(tensors[name]))
        if which == "trained":
            self._storage = {}
