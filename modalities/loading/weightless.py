"""Networks without content: torch runs them on tensors that have a shape and no memory, so that their needs are counted
before any weight is loaded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.system.live_tensors import LiveTensors


@contextmanager
def without_content() -> Iterator[None]:
    """Makes all tensors inside of the block tensors without content, which say that they are on a CPU.

    Autocast and the choice of an attention kernel are those of a CPU, whose fused kernel keeps what those of a GPU do.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def on_meta(make: Callable[[], Any], dtype: torch.dtype) -> Any:
    """Returns a new network on the device `meta`, frozen, its weights in a dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            network = make()
    finally:
        torch.set_default_dtype(before)
    return network.requires_grad_(False).eval()


def emptied(network: nn.Module) -> None:
    """Replaces the tensors of a network in place by tensors without content; call it inside of `without_content`."""
    known: dict[int, nn.Parameter] = {}
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                like = torch.empty(parameter.shape, dtype=parameter.dtype)
                fresh = known.setdefault(id(parameter), nn.Parameter(like, requires_grad=parameter.requires_grad))
                module._parameters[name] = fresh
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def backward_peak(network: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Returns the largest bytes of live tensors in a forward and backward pass, the weights and their gradients left
    out: each gradient is dropped when it is there.

    A gradient that waits for a second one, of a weight that is used twice, is in float32 as it is where weights have
    masters.
    """

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad_dtype = torch.float32
    handles = [parameter.register_post_accumulate_grad_hook(drop) for parameter in trained]
    with LiveTensors() as live:
        forward().backward()
    for handle in handles:
        handle.remove()
    return int(live.peak)


def forward_costs(forward: Callable[[], Any]) -> tuple[int, int, int]:
    """Returns the largest bytes of live tensors, the FLOPs and the kernels of a forward pass without a graph."""
    with torch.no_grad(), Kernels() as kernels:
        forward()
    return kernels.peak, kernels.flops, kernels.count


class Kernels(LiveTensors):
    """Counts, beside live tensors, FLOPs and the operations that launch a kernel: views and questions launch none."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.flops = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils.flop_counter import flop_registry

        result = super().__torch_dispatch__(func, types, args, kwargs)
        if (formula := flop_registry.get(func.overloadpacket)) is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        name = func.overloadpacket.__name__
        self.count += func.namespace == "aten" and not func.is_view and not name.startswith(_NO_KERNEL)
        return result


_NO_KERNEL = ("_unsafe_view", "detach", "empty", "sym_", "size", "stride", "is_", "lift_fresh", "new_empty")
