"""Reward models on a policy's own base: an adapter and a scalar head each, and no second copy of the base.

Maths: r = w . h + b, where h is the last hidden state at the answer's last token, by the base with the adapter on
(Sidahmed et al. 2024, PERL, arXiv 2403.10704, section 3.1: reward models are adapters on the frozen language model).
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.contracts import ConfigError

from ..encoding.network import vision_parameters
from ..loading.lora import Lora, leave_casts_to_autocast
from ..loading.merging import adapter_layers

POLICY = "default"  # the name of the policy's own adapter
_SAVED = "base_model.model."  # what names in peft's files begin with
# Names of heads in files, without what they begin with: of a sequence classifier, as trl's trainer of reward models
# saves it, and of the value head of older versions of trl.
_HEADS = ("score", "v_head.summary", "v_head")
_TINY = Lora(rank=2, alpha=4)


@dataclass(frozen=True)
class _Added:
    """A reward model that the policy's model holds."""

    name: str  # of its adapter in the model
    weight: Tensor  # [H] float32, on the CPU
    bias: Tensor  # [] float32
    adapts_vision: bool


@dataclass
class RewardAdapters:
    """The reward models that are adapters on a policy's model, by their folders or hub names."""

    model: Any  # of transformers, with the policy's adapter
    _added: dict[str, _Added] = field(default_factory=dict, repr=False)

    def add(self, path: str) -> None:
        """Adds an adapter of peft to the model, switched off and frozen; nothing happens where it is there already.

        Raises ConfigError where it cannot be loaded, has no scalar head, or was made for another model.
        """
        if path in self._added:
            return
        config, tensors = _loaded(path)
        weight, bias = _head_of(path, tensors)
        embeddings = self.model.get_input_embeddings().weight
        size, device = embeddings.shape[1], embeddings.device
        if len(weight) != size:
            raise ConfigError(f"reward adapter {path}: its head reads {len(weight)} numbers, the policy has {size}")
        name, before = f"reward_{len(self._added)}", [(one, one.requires_grad) for one in self.model.parameters()]
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Already found a `peft_config` attribute")
                self.model.add_adapter(config, name)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"reward adapter {path}: not for the policy's model: {error}") from error
        finally:
            self._switch_to(POLICY, before)
        own = {_saved_name(one, name): (one, p) for one, p in self.model.named_parameters() if f".{name}" in one}
        _check_fits(path, own, tensors)
        for key, (one, _) in own.items():
            place, _, leaf = one.rpartition(".")
            value = nn.Parameter(tensors[key].to(device, torch.float32), requires_grad=False)
            setattr(self.model.get_submodule(place), leaf, value)
        self.model.eval()  # new layers begin in training mode, with the dropout of the reward model's own training
        leave_casts_to_autocast(self.model)
        for layer in adapter_layers(self.model):
            if layer.lora_variant:  # of a DoRA, whose norms are taken in the precision of its input
                layer.cast_input_dtype_enabled = True
        vision = vision_parameters(self.model)
        self._added[path] = _Added(name, weight, bias, any(one in vision for one, _ in own.values()))

    def adapts_vision(self, path: str) -> bool:
        """Returns whether an adapter changes the features of images."""
        return self._added[path].adapts_vision

    @contextmanager
    def active(self, path: str) -> Iterator[None]:
        """Switches this adapter on inside of the block, in the place of the policy's."""
        before = [(one, one.requires_grad) for one in self.model.parameters()]
        self._switch_to(self._added[path].name, before)
        try:
            yield
        finally:
            self._switch_to(POLICY, before)

    def scores(self, path: str, states: Tensor) -> Tensor:
        """Returns the scores [B] of states [B, H] float32 on the CPU."""
        return states @ self._added[path].weight + self._added[path].bias

    def _switch_to(self, name: str, flags: list[tuple[Tensor, bool]]) -> None:
        """Switches one adapter on; peft would make its tensors trained ones, and all others frozen."""
        self.model.set_adapter(name)
        for parameter, is_trained in flags:
            parameter.requires_grad_(is_trained)


def write_tiny_adapter(model: Any, part: str, seed: int, folder: Path) -> None:
    """Writes a random reward model for a model to a folder: an adapter of a part's layers, and a head.

    The model is changed.
    """
    from peft.utils import get_peft_model_state_dict
    from safetensors.torch import save_file

    _TINY.add_to_language_model(model, [part])
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    tensors = {f"{_SAVED}{name}": tensor.contiguous() for name, tensor in get_peft_model_state_dict(model).items()}
    tensors[f"{_SAVED}score.weight"] = torch.randn(1, model.get_input_embeddings().weight.shape[1], generator=generator)
    config = model.peft_config[POLICY]
    config.task_type, config.modules_to_save = "SEQ_CLS", ["classifier", "score"]  # as peft sets them
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})


def _loaded(path: str) -> tuple[Any, dict[str, Tensor]]:
    """Returns the settings and the tensors of an adapter. Raises ConfigError where there is no LoRA."""
    from peft import LoraConfig, PeftConfig
    from peft.utils import load_peft_weights

    folder = Path(path).expanduser()
    place = str(folder) if folder.is_dir() else path
    try:
        config, tensors = PeftConfig.from_pretrained(place), load_peft_weights(place, device="cpu")
    except (ValueError, OSError, KeyError, RuntimeError, TypeError) as error:
        raise ConfigError(
            f"reward adapter {path}: cannot load it ({error}); allowed are a hub name (owner/name) or a folder of a "
            "LoRA that peft has saved"
        ) from error
    if not isinstance(config, LoraConfig):
        raise ConfigError(f"reward adapter {path}: it must be a LoRA, got {config.peft_type}")
    config.modules_to_save = config.task_type = None  # the head is no part of the policy's model
    config.inference_mode = True
    return config, tensors


def _head_of(path: str, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Takes the head out of a file's tensors: weight [H], bias []. Raises ConfigError where none gives one number."""
    for head in _HEADS:
        places = [key for key in tensors if f".{key}".endswith(f".{head}.weight")]
        if not places:
            continue
        weight = tensors.pop(places[0])
        bias = tensors.pop(places[0].removesuffix("weight") + "bias", torch.zeros(1))
        if weight.ndim != 2 or len(weight) != 1:
            raise ConfigError(f"reward adapter {path}: its head must give one number, got {list(weight.shape)}")
        return weight[0].float(), bias.reshape(()).float()
    raise ConfigError(
        f"reward adapter {path}: no head in its file, which must hold one of "
        f"{', '.join(f'{head}.weight' for head in _HEADS)}"
    )


def _saved_name(name: str, adapter: str) -> str:
    """Returns the name in peft's files of a tensor of an adapter."""
    own = name.replace(f".{adapter}", "")
    return _SAVED + own.replace("lora_magnitude_vector.weight", "lora_magnitude_vector")


def _check_fits(path: str, own: dict[str, tuple[str, Tensor]], tensors: dict[str, Tensor]) -> None:
    """Raises ConfigError where the tensors of a file are not those of the adapter in the policy's model."""
    if wrong := sorted(own.keys() ^ tensors.keys()):
        raise ConfigError(
            f"reward adapter {path}: not for the policy's model: {len(wrong)} names differ, such as {wrong[0]!r}"
        )
    for key, (_, parameter) in own.items():
        if parameter.shape != tensors[key].shape:
            raise ConfigError(
                f"reward adapter {path}: not for the policy's model: {key!r} has shape {list(tensors[key].shape)}, "
                f"needed is {list(parameter.shape)}"
            )
