"""A LoRA added to the frozen weights for the time of a rollout, whose network calls then are those of the base alone.

Maths: W + scale B A, rounded to the dtype of W (Hu et al. 2021, arXiv 2106.09685, section 4.1); of a DoRA
m (W + scale B A) / |W + scale B A| (Liu et al. 2024, arXiv 2402.09353, equation 5).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError

from .lora import Lora
from .quantise import Quantise


def check_merging(lora: Lora | None, quantise: Quantise | None) -> None:
    """Raises ValueError for adapters that are to be merged into weights in few bits, which would be rounded anew."""
    if lora is not None and lora.merge_rollouts and quantise is not None:
        raise ValueError(
            "lora.merge_rollouts is for frozen weights in the run's precision: merged into weights in "
            f"{quantise.bits} bits, the adapter would be rounded away; leave merge_rollouts or quantise out"
        )


@dataclass
class MergedAdapters:
    """The adapters of some networks, which `with merged():` adds to the weights that they adapt.

    The frozen weights are kept on the host meanwhile, and come back bit for bit, also after an error. Such blocks can
    be nested. An adapter that is switched off (the reference) stays off. Copies of the weights (`Weights`) are put in
    place before the block, never inside.
    """

    networks: Sequence[nn.Module]
    _kept: dict[str, Tensor] = field(default_factory=dict, repr=False)  # on the host, filled anew by each block
    _is_merged: bool = field(default=False, repr=False)
    _is_compared: bool = field(default=False, repr=False)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Merges the adapters inside of the block. Raises ConfigError where other layers read an adapted weight."""
        layers = [] if self._is_merged else [layer for one in self.networks for layer in adapter_layers(one)]
        layers = [layer for layer in layers if not layer.disable_adapters]
        if not layers:
            yield
            return
        frozen = {f"{number}": tensor for number, tensor in enumerate(self._adapted(layers))}
        self._keep(frozen)
        self._is_merged = True
        try:
            for layer in layers:
                _merge(layer)
            yield
        finally:
            for layer in layers:
                layer.merged_adapters.clear()
            for name, tensor in frozen.items():
                tensor.data.copy_(self._kept[name])
            self._is_merged = False

    @torch.no_grad()
    def compared(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Tensor] | None:
        """Returns what a network call gives with the adapters merged, and apart; None when this was asked before."""
        if self._is_compared:
            return None
        self._is_compared = True
        with self():
            merged = compute()
        return merged.float(), compute().float()

    def _keep(self, frozen: dict[str, Tensor]) -> None:
        for name, tensor in frozen.items():
            if name not in self._kept:
                self._kept[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._kept[name].copy_(tensor.data)

    def _adapted(self, layers: Iterable[Any]) -> list[Tensor]:
        """Returns the tensors that merging writes, each once."""
        found = {id(tensor): tensor for layer in layers for tensor in _written(layer)}
        holders = [
            name
            for network in self.networks
            for name, module in network.named_modules(remove_duplicate=False)
            if not name.endswith("base_layer") and any(id(p) in found for p in module.parameters(recurse=False))
        ]
        if holders:
            raise ConfigError(
                f"lora.merge_rollouts: {holders[0]!r} reads a weight that the adapter of another layer changes; leave "
                "merge_rollouts out"
            )
        return list(found.values())


def adapter_layers(network: nn.Module) -> list[Any]:
    """Returns the layers of a network that hold a LoRA of peft."""
    from peft.tuners.lora import LoraLayer

    return [module for module in network.modules() if isinstance(module, LoraLayer)]


def _merge(layer: Any) -> None:
    """Merges the adapter of a layer into the storage that its weights have, to which a compiled step refers."""
    before = [(tensor, tensor.data) for tensor in _written(layer)]
    layer.merge()
    for tensor, storage in before:
        if tensor.data_ptr() != storage.data_ptr():  # that of a DoRA makes new tensors
            tensor.data = storage.copy_(tensor.data)


def _written(layer: Any) -> list[Tensor]:
    """Returns the tensors of an adapted layer that merging changes."""
    from peft.tuners.lora.layer import ParamWrapper

    base = layer.get_base_layer()
    if isinstance(layer, ParamWrapper):
        return [base.get_parameter(layer.parameter_name)]
    return list(base.parameters())
