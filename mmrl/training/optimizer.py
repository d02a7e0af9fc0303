"""The optimizer of a run over its trained tensors, and its learning rate by iteration."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.config import OptimizerSettings
from mmrl.core.weights import Weights, is_sharded
from mmrl.system.errors import ConfigError
from mmrl.system.host_memory import on_host

CHUNK = 2**28  # bytes of masters that a step from the host moves to the device at once


def optimizer_of(settings: OptimizerSettings, weights: Weights) -> torch.optim.Optimizer:
    """Returns the optimizer: one parameter group where all tensors have the same rate, else one for each, in their
    order.

    Raises ConfigError where the optimizer's package is not installed.
    """
    stepped = weights.optimized
    if len(set(weights.rate_scale.values())) <= 1:
        groups = [{"params": list(stepped.values()), "rate_scale": next(iter(weights.rate_scale.values()))}]
    else:
        groups = [{"params": [p], "rate_scale": weights.rate_scale[name]} for name, p in stepped.items()]
    rate, decay, fused = settings.learning_rate, settings.weight_decay, _is_fused(settings, weights)
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=settings.betas[0], weight_decay=decay, fused=fused)
    if settings.name == "adamw8bit":
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise ConfigError("optimizer.name 'adamw8bit' needs bitsandbytes: pip install 'mmrl[quantise]'") from error
        return AdamW8bit(groups, lr=rate, betas=settings.betas, eps=settings.epsilon, weight_decay=decay)  # type: ignore[no-any-return]
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return kind(groups, lr=rate, betas=settings.betas, eps=settings.epsilon, weight_decay=decay, fused=fused)


def _is_fused(settings: OptimizerSettings, weights: Weights) -> bool | None:
    """Returns whether the step is one kernel; None: as torch sees fit."""
    if settings.fused is None:
        return True if all(p.is_cuda and not is_sharded(p) for p in weights.parameters.values()) else None
    return settings.fused


@torch.no_grad()
def step_on_masters(optimizer: torch.optim.Optimizer, weights: Weights) -> None:
    """Makes one step of an optimizer of `weights.optimized` by the gradients of the network's own parameters.

    Chunk by chunk, masters and their state are moved to the network's device, stepped there by the same kernels as
    without masters, and moved back; the network follows. The gradients are dropped.
    """
    names = {id(master): name for name, master in weights.optimized.items()}
    groups = optimizer.param_groups
    try:
        for group in groups:
            for masters in _chunks(group["params"]):
                chosen = [names[id(master)] for master in masters]
                _step_chunk(optimizer, group, masters, [weights.parameters[name] for name in chosen])
                weights.follow(chosen)
    finally:
        optimizer.param_groups = groups
    device = next(iter(weights.parameters.values())).device
    if device.type == "cuda":  # copies to the host are not awaited one by one
        torch.cuda.synchronize(device)


def _chunks(masters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yields consecutive masters of at most `CHUNK` bytes together, or of one tensor."""
    chunk, size = list[nn.Parameter](), 0
    for master in masters:
        if chunk and size + master.nbytes > CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(master)
        size += master.nbytes
    if chunk:
        yield chunk


def _step_chunk(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    masters: Sequence[nn.Parameter],
    parameters: Sequence[nn.Parameter],
) -> None:
    """Steps on some masters of a group, on the device of the network's parameters of the same order."""
    moved = [
        nn.Parameter(master.to(parameter.device, non_blocking=True))
        for master, parameter in zip(masters, parameters, strict=True)
    ]
    optimizer.param_groups = [group | {"params": moved}]
    held = [optimizer.state.pop(master, {}) for master in masters]
    for parameter, here, state in zip(parameters, moved, held, strict=True):
        here.grad, parameter.grad = parameter.grad, None
        is_fused = bool(group.get("fused"))
        optimizer.state[here] = {key: _moved(value, here, is_fused=is_fused) for key, value in state.items()}
    optimizer.step()
    for master, here, before in zip(masters, moved, held, strict=True):
        if master.device != here.device:
            master.copy_(here.detach(), non_blocking=True)
        after = optimizer.state.pop(here, {})
        optimizer.state[master] = {key: _returned(value, before.get(key), master) for key, value in after.items()}


def _moved(value: Any, like: Tensor, *, is_fused: bool) -> Any:
    """Returns an entry of the state where the step reads it: a count of steps is on the device only for one kernel."""
    is_there = isinstance(value, Tensor) and (is_fused or value.shape == like.shape)
    return value.to(like.device, non_blocking=True) if is_there else value


def _returned(value: Any, before: Any, like: Tensor) -> Any:
    """Returns an entry of the state on the device of the masters, in the tensor that it came from where that is one
    that a GPU writes fast."""
    if not isinstance(value, Tensor) or value.device == like.device:
        return value
    if isinstance(before, Tensor) and before.device == like.device and before.is_pinned() == value.is_cuda:
        return before.copy_(value, non_blocking=True)
    return on_host(value)


def learning_rate(settings: OptimizerSettings, iteration: int, total: int) -> float:
    """Returns the rate of `iteration` (from 0): linear warm-up, then constant, or linear or cosine to 0."""
    if iteration < settings.warmup:
        return settings.learning_rate * (iteration + 1) / settings.warmup
    if settings.schedule == "constant":
        return settings.learning_rate
    done = (iteration - settings.warmup) / max(1, total - settings.warmup)
    share = 1 - done if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * share
