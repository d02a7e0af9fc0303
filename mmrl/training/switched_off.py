"""What makes log-probs inexact, switched off for a block: dropout, and a precision below float32."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

LOW = frozenset({torch.float16, torch.bfloat16})
HELD = frozenset({torch.float32, *LOW})  # dtypes of weights that float32 can stand for; quantised ones are others


def training_modules(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Returns the modules below that are in training mode, where their dropout is active."""
    return [part for module in modules for part in module.modules() if part.training]


@contextmanager
def in_eval_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Has these modules, and none below them that is not among them, in evaluation mode."""
    for part in modules:
        part.training = False
    try:
        yield
    finally:
        for part in modules:
            part.training = True


def can_be_float32(networks: Sequence[nn.Module]) -> bool:
    """Returns whether float32 can stand in for some weights of the networks, or for autocast around them, and for all.

    Not for quantised weights, whose layers compute as their package sees fit.
    """
    return all(tensor.dtype in HELD for tensor in _floats(networks))


@contextmanager
def in_float32(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Has each call of the networks compute in float32, whatever the autocast around it.

    Inside of a call, and only there, weights in a lower precision have float32 copies in their place: the numbers are
    the same, and so is the storage after it. Inputs are converted; outputs stay float32. What is computed outside of
    these calls keeps its precision.
    """
    calls: list[tuple[ExitStack, list[tuple[Tensor, Tensor]]]] = []

    def begin(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        stack, lower = ExitStack(), [(one, one.data) for one in _floats([network]) if one.dtype in LOW]
        calls.append((stack, lower))
        device = next((one.device.type for one in network.parameters()), "cpu")
        stack.enter_context(torch.autocast(device, enabled=False))
        for tensor, data in lower:
            tensor.data = data.float()
        return raised(args), raised(kwargs)

    def end(network: nn.Module, args: Any, output: Any) -> None:
        stack, lower = calls.pop()
        for tensor, data in lower:
            tensor.data = data
        stack.close()

    handles = [
        handle
        for network in networks
        for handle in (
            network.register_forward_pre_hook(begin, with_kwargs=True),
            network.register_forward_hook(end, always_call=True),
        )
    ]
    try:
        with torch.compiler.set_stance("force_eager"):  # compiled code knows of no hook
            yield
    finally:
        for handle in handles:
            handle.remove()


def raised(value: Any) -> Any:
    """Returns a value with each tensor of lower precision in it, however deep in lists, tuples and dicts, in
    float32."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in LOW else value
    if isinstance(value, Mapping) and type(value) is dict:
        return {key: raised(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(raised, value))
    return value


def _floats(networks: Sequence[nn.Module]) -> list[Tensor]:
    """Returns the distinct parameters of the networks, and those of their buffers that hold no integers."""
    held = [
        (*network.parameters(), *(one for one in network.buffers() if one.is_floating_point())) for network in networks
    ]
    return list({id(tensor): tensor for tensors in held for tensor in tensors}.values())
