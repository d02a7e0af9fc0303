"""The trained tensors of a policy and their copies: old, reference, averaged; whole, or a shard of each."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn

from mmrl.core.data import WeightsName
from mmrl.system.host_memory import on_host

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Returns whether this process holds only a shard of a tensor."""
    # inside, since this import takes half a second
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def whole(parameter: Tensor) -> Tensor:
    """Returns the full tensor of a sharded parameter, for use outside of a network's own forward call.

    Returns any other tensor as it is. The gradient is summed over processes and cut into shards again. All processes
    must call this function, in the same order.
    """
    from torch.distributed.tensor import Partial

    return parameter.full_tensor(grad_placements=[Partial()]) if is_sharded(parameter) else parameter


def shard_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns this process's shard of a full tensor where `like` is sharded, else the tensor. Sends nothing."""
    from torch.distributed.tensor import distribute_tensor

    if is_sharded(like):
        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return tensor


def local(tensor: Tensor) -> Tensor:
    """Returns the part of a tensor that this process holds, on the same storage."""
    return tensor.to_local() if is_sharded(tensor) else tensor


class Weights:
    """The trained tensors of a policy and their copies. `with weights("old"): ...` puts a copy in place of the tensors.

    Such blocks can be nested, and an error restores the tensors too. Only trained tensors are copied: those of a LoRA,
    or the full network. The trained tensors keep their storage, which an optimizer refers to. Where they are sharded,
    so are the copies. A copy is then written into that storage, since `fully_shard` gathers from there only, and the
    trained numbers are stored elsewhere meanwhile.

    With masters (`hold_masters`) the trained numbers are these, in float32, and the network computes with roundings of
    them. Masters and copies may be in the CPU's memory.
    """

    def __init__(
        self,
        trained: Mapping[str, nn.Parameter],
        *,
        adapter_off: Callable[[], AbstractContextManager[None]] | None = None,
        rate_scale: Mapping[str, float] | None = None,
    ) -> None:
        """Makes the weights of a policy.

        Args:
            trained: the trained parameters by name.
            adapter_off: returns a context that switches the adapter off: the weights are then the reference.
            rate_scale: factors of the learning rate by parameter name, where they are not 1.
        """
        self.parameters = dict(trained)
        self.rate_scale = {name: (rate_scale or {}).get(name, 1.0) for name in self.parameters}
        self._storage = {name: parameter.data for name, parameter in trained.items()}
        self._is_sharded = False
        self._masters: dict[str, nn.Parameter] = {}
        self._stores_on_host = False
        self._copies: dict[WeightsName, dict[str, Tensor]] = {}
        self._adapter_off = adapter_off
        self._placed: WeightsName = "trained"

    def shard(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Replaces the parameters by the sharded ones of the network, by the same names, before any copy is made."""
        assert not self._copies and parameters.keys() == self.parameters.keys(), "other weights, or copies of them"
        self.parameters = {name: parameters[name] for name in self.parameters}
        self._is_sharded, self._storage = True, {}

    def hold_masters(self, dtype: torch.dtype, *, are_on_host: bool) -> None:
        """Splits each trained tensor into a float32 master and what the network computes with, in `dtype`.

        Before any copy is made, and not for sharded tensors. Gradients stay float32. An optimizer steps on `optimized`,
        and then calls `follow`.
        """
        assert not self._copies and not self._is_sharded and not self._masters, "masters come before copies"
        for name, parameter in self.parameters.items():
            before = parameter.data
            self._masters[name] = nn.Parameter(on_host(before) if are_on_host else before.clone())
            parameter.data = before.to(dtype)
            parameter.grad_dtype = before.dtype
        self._storage = {name: parameter.data for name, parameter in self.parameters.items()}

    def keep_on_host(self) -> None:
        """Keeps further copies in the CPU's memory; each is moved to the device while it is in place."""
        assert not self._copies and not self._is_sharded, "before any copy, and not of shards"
        self._stores_on_host = True

    @property
    def optimized(self) -> Mapping[str, nn.Parameter]:
        """The tensors that an optimizer steps on: the masters where there are some, else the trained parameters."""
        return self._masters or self.parameters

    @property
    def has_masters(self) -> bool:
        """Whether the trained numbers are float32 masters, apart from what the network computes with."""
        return bool(self._masters)

    @torch.no_grad()
    def follow(self, names: Iterable[str]) -> None:
        """Rounds the masters of these names into the tensors that the network computes with."""
        for name in names:
            self._storage[name].copy_(self._masters[name], non_blocking=True)

    def keep(self, which: WeightsName) -> None:
        """Makes the copy `which` of the trained tensors as they are now, unless there is one or none is needed."""
        if which == "trained" or which in self._copies or (which == "reference" and self._adapter_off):
            return
        # the reference never changes, so it need not be finer than what the network computes with
        tensors = self._storage if which == "reference" and self._masters else self.tensors("trained")
        self._copies[which] = {name: self._kept(name, tensor.detach()) for name, tensor in tensors.items()}

    def _kept(self, name: str, tensor: Tensor) -> Tensor:
        if self._stores_on_host:
            return on_host(tensor)
        device = self.parameters[name].device
        return tensor.clone() if tensor.device == device else tensor.to(device)

    def start_from(self, tensors: Mapping[str, Tensor]) -> None:
        """Loads the trained tensors of an earlier run as the start of this run, before any copy is made.

        The reference is then a copy of these tensors: with the adapter off, the model would be that from before the
        earlier run. Raises ValueError when names or shapes differ.
        """
        assert not self._copies, "copies of the weights from before the start"
        self.load("trained", tensors)
        self._adapter_off = None

    def has(self, which: WeightsName) -> bool:
        """Returns whether `with weights(which)` would work."""
        return which == "trained" or which in self._copies or (which == "reference" and self._adapter_off is not None)

    @torch.no_grad()
    def average(self, which: WeightsName, decay: float) -> None:
        """Updates copy <- decay * copy + (1 - decay) * trained, in float32.

        Decay 0 copies exactly, 1 changes nothing.
        """
        copies, trained = self._copies[which], self.tensors("trained")
        if not self._masters and not self._stores_on_host:
            ends = [local(trained[name]) for name in copies]
            torch._foreach_lerp_([local(copy) for copy in copies.values()], ends, 1 - decay)
            return
        for name, copy in copies.items():  # one by one: what is on the host is moved and back
            device = self.parameters[name].device
            copy.copy_(copy.to(device).lerp_(trained[name].to(device), 1 - decay))

    @contextmanager
    def __call__(self, which: WeightsName) -> Iterator[None]:
        """Puts the tensors `which` in place inside of the block."""
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
        """Returns the tensors `which` themselves, by name; DTensors where they are sharded."""
        if which != "trained":
            return dict(self._copies[which])
        if self._masters:
            return {name: master.detach() for name, master in self._masters.items()}
        if self._is_sharded and self._placed == "trained":
            return {name: parameter.detach() for name, parameter in self.parameters.items()}
        return dict(self._storage)

    @property
    def kept(self) -> list[WeightsName]:
        """The names of the copies that there are."""
        return sorted(self._copies)

    @torch.no_grad()
    def load(self, which: WeightsName, tensors: Mapping[str, Tensor]) -> None:
        """Overwrites the tensors `which` in place. Raises ValueError when names or shapes differ."""
        self.keep(which)
        current = self.tensors(which)
        if wrong := sorted(set(current) ^ set(tensors)):
            raise ValueError(f"{which} weights do not fit the model: {len(wrong)} names differ, such as {wrong[0]!r}")
        for name, tensor in current.items():
            if tensor.shape != tensors[name].shape:
                raise ValueError(
                    f"{which} weights do not fit the model: {name!r} has shape {list(tensors[name].shape)}, "
                    f"needed is {list(tensor.shape)}"
                )
            local(tensor).copy_(local(shard_of(tensors[name], tensor)))
        if which == "trained" and self._masters:
            self.follow(self._masters)

    def _place(self, which: WeightsName) -> None:
        if which == self._placed:
            return
        if self._is_sharded:
            self._write(which)
        else:
            tensors = self._storage if which == "trained" else self._copies[which]
            for name, parameter in self.parameters.items():
                like = self._storage[name]
                parameter.data = tensors[name].to(like.device, like.dtype, non_blocking=True)
        self._placed = which

    @torch.no_grad()
    def _write(self, which: WeightsName) -> None:
        """Writes the shards of the tensors `which` into the parameters' own storage."""
        tensors = self.tensors(which)
        if self._placed == "trained":
            self._storage = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            local(parameter.detach()).copy_(local(tensors[name]))
        if which == "trained":
            self._storage = {}
