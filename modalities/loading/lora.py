"""Low-rank adapters on a diffusers network or a transformers model, through peft."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError

from .adapted_layers import attention_layers, is_linear, log_unreached, packed_weights, pattern_of
from .exporting import file_in


@dataclass(frozen=True)
class Lora(Checked):
    """A low-rank adapter (Hu et al. 2021, arXiv 2106.09685); rank 32 and alpha 64 are Flow-GRPO's.

    The weights of a layer are W + scale B A, and with `use_dora` m (W + scale B A) / |W + scale B A|, where the norm is
    that of a row of W in torch's order, and the trained m begins as the norm of W (Liu et al. 2024, DoRA, arXiv
    2402.09353, equation 5). No gradient flows through the norm (there, section 4.3).
    """

    rank: Annotated[int, Field(ge=1)] = 32  # of the two factors of a layer's change
    alpha: Annotated[int, Field(ge=1)] = 64  # the scale of the adapter is alpha / rank
    use_rslora: bool = False  # the scale is alpha / sqrt(rank) (Kalajdzievski 2023, rsLoRA, arXiv 2312.03732)
    # The length of each output's weights is trained, too, apart from their direction (DoRA). An update is slower, since
    # each call makes W + scale B A; `merge_rollouts` takes that from rollouts. Not for experts, and not with an engine.
    use_dora: bool = False
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
                    LoraConfig(
                        r=self.rank,
                        lora_alpha=self.alpha,
                        use_rslora=self.use_rslora,
                        use_dora=self.use_dora,
                        target_modules=targets,
                        init_lora_weights="gaussian",
                    )
                )
        except (ValueError, OSError, KeyError) as error:
            raise ConfigError(f"lora: {error}") from error
        if not getattr(network, "peft_config", None):  # diffusers skips a file without names of this network
            raise ConfigError(f"lora.path: {self.path} holds no adapter of the part {prefix!r}")
        self._train(network)
        if self.path is not None:
            folder = Path(self.path).expanduser()
            _unrounded(network, folder / file_in(folder, prefix), f"{prefix}.")

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
            if weights and self.use_dora:
                raise ConfigError(
                    f"lora.use_dora: not for packed weights of experts, as {weights[0]!r}, which lora.targets names"
                )
            model.add_adapter(
                LoraConfig(
                    r=self.rank,
                    lora_alpha=self.alpha,
                    use_rslora=self.use_rslora,
                    use_dora=self.use_dora,
                    target_modules=pattern_of(layers, (name for name, _ in model.named_modules())) if layers else [],
                    target_parameters=weights or None,
                )
            )
        self._train(model)
        if self.path is not None:
            _unrounded(model, Path(self.path).expanduser() / "adapter_model.safetensors", "base_model.model.")
        leave_casts_to_autocast(model)
        for name, parameter in model.named_parameters():
            if not name.startswith(tuple(f"{part}." for part in parts)):
                parameter.requires_grad_(False)

    def _train(self, network: Any) -> None:
        """Leaves only the adapter trainable. Raises ConfigError where a loaded adapter is of another kind than set."""
        loaded = network.peft_config["default"]
        for name, given, found in (
            ("use_dora", self.use_dora, loaded.use_dora),
            ("use_rslora", self.use_rslora, loaded.use_rslora),
        ):
            if given != found:
                raise ConfigError(f"lora.{name}: the adapter of lora.path has {found}, and {given} is set")
        _train_adapter(network)
        if self.use_dora and self.path is None:
            _begin_at_own_norms(network)


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
    from peft import LoraConfig, PeftConfig

    if not (folder / "adapter_config.json").is_file():
        raise ConfigError(f"lora.path: {folder} holds no adapter_config.json")
    try:
        config = PeftConfig.from_pretrained(str(folder))
        if isinstance(config, LoraConfig) and config.use_dora:
            model.load_adapter(peft_config=config, adapter_state_dict=_dora_tensors(folder), is_trainable=True)
        else:
            model.load_adapter(str(folder), is_trainable=True)
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise ConfigError(f"lora.path: cannot load {folder} on this model: {error}") from error
    if {"lora_A", "modules_to_save"} & {name for name, _ in model.get_output_embeddings().named_children()}:
        # log-probs are taken from the layer's own weight, in blocks, without the adapter's forward pass
        raise ConfigError(f"lora.path: {folder} adapts lm_head, which is not supported; merge it into the model")


def _dora_tensors(folder: Path) -> dict[str, Tensor]:
    """Returns the tensors of an exported DoRA, its lengths by their names in the model.

    peft leaves the end of these names out of its files, and transformers 5.23 does not put it back: the adapter would
    begin with the lengths of the frozen weights.
    """
    from safetensors.torch import load_file

    named = load_file(folder / "adapter_model.safetensors")
    return {f"{name}.weight" if name.endswith(".lora_magnitude_vector") else name: t for name, t in named.items()}


def _unrounded(model: nn.Module, path: Path, prefix: str) -> None:
    """Copies a loaded adapter's tensors once more from a file, where their names begin with `prefix`, in float32.

    transformers and diffusers round them to the model's precision.
    """
    from safetensors.torch import load_file

    named = load_file(path) if path.is_file() else {}
    for name, parameter in model.named_parameters():
        own = name.replace(".default", "").replace("magnitude_vector.weight", "magnitude_vector")
        saved = named.get(f"{prefix}{own}") if "lora_" in name else None
        if saved is not None:
            parameter.data.copy_(saved)


def _train_adapter(network: nn.Module) -> None:
    """Makes the adapter's tensors trainable, in float32, and freezes all others."""
    network.eval()  # new layers begin in training mode, and the dropout of a loaded adapter would change each log-prob
    for name, parameter in network.named_parameters():
        is_adapter = "lora_" in name
        if is_adapter:
            parameter.data = parameter.data.float()  # small updates would be lost in bf16
        parameter.requires_grad_(is_adapter)


def _begin_at_own_norms(network: nn.Module) -> None:
    """Sets the lengths of a new DoRA to those of the frozen weights, in float32.

    peft takes them in the precision of the weights: rounded there, the first policy would not be the reference.
    """
    from peft.tuners.lora import LoraLayer

    for layer in network.modules():
        if isinstance(layer, LoraLayer):
            layer.lora_magnitude_vector["default"].update_layer(
                base_layer=layer.get_base_layer(),
                lora_A=layer.lora_A["default"].weight,
                lora_B=layer.lora_B["default"].weight,
                scaling=layer.scaling["default"],
            )


def leave_casts_to_autocast(network: nn.Module) -> None:
    """Stops peft from casting inputs of adapters on weights in half precision up, which autocast would cast down again.

    Such a network must run under autocast only. No number changes: the values are of half precision before and after.
    """
    from peft.tuners.lora.layer import Linear

    for module in network.modules():
        if isinstance(module, Linear) and not module.lora_variant:
            half = module.get_base_layer().weight.dtype in (torch.bfloat16, torch.float16)
            module.cast_input_dtype_enabled = not half
