"""Low-rank adapters on a diffusers network or a transformers model, through peft."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError

from .adapted_layers import attention_layers, is_linear, log_unreached, packed_weights, pattern_of
from .exporting import file_in


@dataclass(frozen=True)
class Lora(Checked):
    """A low-rank adapter (Hu et al. 2021, arXiv 2106.09685); rank 32 and alpha 64 are Flow-GRPO's."""

    rank: Annotated[int, Field(ge=1)] = 32  # of the two factors of a layer's change
    alpha: Annotated[int, Field(ge=1)] = 64  # the adapter counts alpha / rank
    # Ends of the names of the adapted layers, or of packed weights of experts (language models); null: the linear
    # layers of the attention of a flow family, all linear layers of a language model.
    targets: tuple[str, ...] | None = None
    path: str | None = None  # a folder with an exported LoRA to start from
    # Rollouts run on W + B A rounded to the dtype of the frozen W, not on W and the adapter: a third to a half of the
    # kernels, and other numbers. The update does not merge, so that log-probs recorded in the rollout differ from its
    # own, as the first rollout says. Not for quantised weights.
    merge_rollouts: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for an empty list of targets."""
        super().__post_init__()
        if self.targets == ():
            raise ValueError("targets must name at least one layer, or be left out, got an empty list")

    def add_to(self, network: Any, default_targets: tuple[str, ...] | None, prefix: str) -> None:
        """Adds the adapter to a diffusers network in place, and leaves only the adapter trainable, in float32.

        `default_targets`: ends of names; None: the linear layers of the network's attention. `prefix`: the network's
        part in its pipeline, with which names in an exported adapter begin.
        Raises ConfigError where no layer fits the targets, or the folder holds no adapter for this network.
        """
        from peft import LoraConfig

        try:
            if self.path is not None:
                network.load_lora_adapter(
                    self.path,
                    prefix=prefix,
                    adapter_name="default",
                    weight_name=file_in(Path(self.path), prefix),
                )
            else:
                ends = self.targets or default_targets
                targets = _attention_pattern(network) if ends is None else list(ends)
                network.add_adapter(
                    LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=targets, init_lora_weights="gaussian")
                )
        except (ValueError, OSError, KeyError) as error:
            raise ConfigError(f"lora: {error}") from error
        if not getattr(network, "peft_config", None):  # diffusers skips a file without names of this network
            raise ConfigError(f"lora.path: {self.path} holds no adapter of the part {prefix!r}")
        _train_adapter(network)

    def add_to_language_model(self, model: Any, parts: Sequence[str]) -> None:
        """Adds the adapter to linear layers of a transformers model in place, and leaves only the adapter trainable.

        `parts`: prefixes of the names of the modules that may be adapted; other tensors of a loaded adapter stay
        frozen. Raises ConfigError where no layer of these parts fits the targets, where the folder holds no adapter for
        this model, and where the adapter changes the model's last layer.
        """
        from peft import LoraConfig

        if self.path is not None:
            _load_adapter(model, Path(self.path).expanduser())
        else:
            layers, weights = _targets(model, parts, self.targets)
            model.add_adapter(
                LoraConfig(
                    r=self.rank,
                    lora_alpha=self.alpha,
                    target_modules=pattern_of(layers, (name for name, _ in model.named_modules())) if layers else [],
                    target_parameters=weights or None,
                )
            )
        _train_adapter(model)
        leave_casts_to_autocast(model)
        for name, parameter in model.named_parameters():
            if not name.startswith(tuple(f"{part}." for part in parts)):
                parameter.requires_grad_(False)


def _attention_pattern(network: nn.Module) -> str:
    """Returns a pattern of the layers of a network's attention. Raises ConfigError where none is found."""
    layers = attention_layers(network)
    if not layers:
        raise ConfigError(
            f"lora.targets: no attention found in a {type(network).__name__}; name the ends of the layers to adapt"
        )
    return pattern_of(layers, (name for name, _ in network.named_modules()))


def _targets(model: nn.Module, parts: Sequence[str], targets: tuple[str, ...] | None) -> tuple[list[str], list[str]]:
    """Returns the names of the parts' linear layers and packed weights of experts that are to be adapted.

    `targets`: ends of the names of both; None: all linear layers, and no packed weights.
    """
    prefixes = tuple(f"{part}." for part in parts)
    layers = [name for name, module in model.named_modules() if is_linear(module) and name.startswith(prefixes)]
    weights = [name for name in packed_weights(model) if name.startswith(prefixes)]
    if targets is None:
        log_unreached(weights)
        weights = []
    else:
        ends = tuple(f".{end}" for end in targets)
        layers = [name for name in layers if name.endswith(ends)]
        weights = [name for name in weights if name.endswith(ends)]
    if not layers and not weights:
        wanted = ", ".join(targets or ("anything",))
        raise ConfigError(f"lora.targets: no linear layer of {', '.join(parts)} has a name that ends in {wanted}")
    return layers, weights


def _load_adapter(model: Any, folder: Path) -> None:
    """Loads an exported adapter. Raises ConfigError where it does not fit the model, or adapts its last layer."""
    if not (folder / "adapter_config.json").is_file():
        raise ConfigError(f"lora.path: {folder} holds no adapter_config.json")
    try:
        model.load_adapter(str(folder), is_trainable=True)
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise ConfigError(f"lora.path: cannot load {folder} on this model: {error}") from error
    if {"lora_A", "modules_to_save"} & {name for name, _ in model.get_output_embeddings().named_children()}:
        # log-probs are taken from the layer's own weight, in blocks, without the adapter's forward pass
        raise ConfigError(f"lora.path: {folder} adapts lm_head, which is not supported; merge it into the model")


def _train_adapter(network: nn.Module) -> None:
    """Makes the adapter's tensors trainable, in float32, and freezes all others."""
    network.eval()  # new layers begin in training mode, and the dropout of a loaded adapter would change each log-prob
    for name, parameter in network.named_parameters():
        is_adapter = "lora_" in name
        if is_adapter:
            parameter.data = parameter.data.float()  # small updates would be lost in bf16
        parameter.requires_grad_(is_adapter)


def leave_casts_to_autocast(network: nn.Module) -> None:
    """Stops peft from casting inputs of adapters on weights in half precision up, which autocast would cast down again.

    Such a network must run under autocast only. No number changes: the values are of half precision before and after.
    """
    from peft.tuners.lora.layer import Linear

    for module in network.modules():
        if isinstance(module, Linear) and not module.lora_variant:
            half = module.get_base_layer().weight.dtype in (torch.bfloat16, torch.float16)
            module.cast_input_dtype_enabled = not half
