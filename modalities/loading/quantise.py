"""Frozen weights in 4 or 8 bits under a LoRA, by bitsandbytes."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, Placement

from .lora import Lora


@dataclass(frozen=True)
class Quantise(Checked):
    """Linear layers of the frozen model in few bits (QLoRA, Dettmers et al. 2023, arXiv 2305.14314).

    Only layers in numbered blocks are quantised: heads and embeddings are few and read directly by models.
    """

    bits: Literal[4, 8] = 4  # 8: LLM.int8, which rounds the inputs of the layers, too
    type: Literal["nf4", "fp4"] = "nf4"  # of 4 bits
    double: bool = False  # the scales of 4 bits are quantised, too: 0.4 bits less for each weight

    def apply(self, model: Any, placement: Placement) -> None:
        """Replaces the layers of a loaded model in place, each moved to the run's device by itself.

        The quantisers of diffusers and transformers do the same while they load; that of diffusers refuses CPUs.
        Raises ConfigError where bitsandbytes is missing, or no layer can be quantised.
        """
        try:
            import bitsandbytes
        except ImportError as error:
            raise ConfigError(
                f'quantise: bitsandbytes is missing or does not run here ({error}): pip install "mmrl[quantise]"'
            ) from error
        names = quantised_layers(model)
        if not names:
            raise ConfigError(f"quantise: no linear layer in numbered blocks found in a {model.__class__.__name__}")
        for name in names:
            parent, _, last = name.rpartition(".")
            layer = self._layer(bitsandbytes.nn, model.get_submodule(name), placement.dtype)
            setattr(model.get_submodule(parent), last, layer.to(placement.device))
        # by these peft chooses its layers
        model.is_loaded_in_4bit, model.is_loaded_in_8bit = self.bits == 4, self.bits == 8

    def _layer(self, layers: Any, linear: nn.Module, dtype: torch.dtype) -> nn.Module:
        """Returns the layer of bitsandbytes with the linear layer's weights, which quantises them when it is moved."""
        assert isinstance(linear, nn.Linear), "only linear layers are listed"
        bias = linear.bias is not None
        new: Any
        if self.bits == 4:
            new = layers.Linear4bit(
                linear.in_features,
                linear.out_features,
                bias,
                compute_dtype=dtype,
                compress_statistics=self.double,
                quant_type=self.type,
            )
            # on such CPUs a call without a graph would round the scales to bf16 in place, and log-probs would change
            new.support_avx512bf16_for_cpu = False
        else:
            new = layers.Linear8bitLt(linear.in_features, linear.out_features, bias, has_fp16_weights=False)
        new.load_state_dict(linear.state_dict())
        if bias:
            new.bias = linear.bias
        frozen: nn.Module = new.requires_grad_(False).eval()
        return frozen


def only_with_lora(quantise: Quantise | None, lora: Lora | None) -> None:
    """Raises ValueError for quantised weights without a LoRA: rounded weights cannot be trained.

    Raises it for 8 bits under a DoRA, too: peft breaks such layers on a CPU when it takes the norms of their weights.
    """
    if quantise is not None and lora is None:
        raise ValueError("quantise is for frozen weights under a LoRA; set lora, too, or leave quantise out")
    if quantise is not None and lora is not None and lora.use_dora and quantise.bits == 8:
        raise ValueError("lora.use_dora needs weights in the run's precision or in 4 bits; set quantise.bits to 4")


def quantised_layers(model: nn.Module) -> list[str]:
    """Returns the names of the linear layers in numbered blocks, but for those that the model keeps in float32."""
    blocks = tuple(
        f"{name}.{number}."
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        for number in range(len(module))
    )
    kept = tuple(getattr(model, "_keep_in_fp32_modules", None) or ())
    return [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and name.startswith(blocks) and not set(kept) & set(name.split("."))
    ]


def saved_by(quantise: Quantise, network: Any) -> int:
    """Returns by how many bytes quantised layers are smaller."""
    saved = 0.0
    for name in quantised_layers(network):
        # a layer with an adapter holds the frozen one inside
        weight = network.get_submodule(name).weight
        if weight.requires_grad or ".lora_" in name:
            continue
        own = weight.numel() * weight.element_size()
        scales = weight.numel() / 64 * (4 if not quantise.double else 1.016) if quantise.bits == 4 else 4 * len(weight)
        saved += own - weight.numel() * quantise.bits / 8 - scales
    return int(saved)
