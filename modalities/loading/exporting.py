"""Files of an exported LoRA: as the pipeline's own loader reads them, and with the names that ComfyUI reads."""

import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mmrl.core.contracts import ConfigError

FILE = "pytorch_lora_weights.safetensors"  # the name that `load_lora_weights` looks for
_SOURCE = "pretrained_model_name_or_path"  # of a part, in the index of a modular pipeline
_SETTINGS = "lora_adapter_metadata"  # the entry of the file's header in which diffusers keeps rank and alpha
# Wan's own names, which ComfyUI keeps, for those of diffusers: (theirs, own)
_WAN = (
    ("attn1.", "self_attn."), ("attn2.", "cross_attn."), ("to_out.0", "o"), ("to_q", "q"), ("to_k", "k"),
    ("to_v", "v"), ("add_k_proj", "k_img"), ("add_v_proj", "v_img"), ("ffn.net.0.proj", "ffn.0"),
    ("ffn.net.2", "ffn.2"),
)  # fmt: skip


def save_lora(pipeline: Any, networks: Mapping[str, nn.Module], folder: Path) -> None:
    """Writes the adapters of networks: those that the pipeline's `load_lora_weights` reads into `FILE`.

    Adapters of other parts, and of pipelines without such a loader, go into files of their own, which
    `network.load_lora_adapter` reads; `loading_code` shows how.
    """
    from diffusers.loaders.lora_base import LoraBaseMixin

    by_pipeline: dict[str, Any] = {}
    for name, network in networks.items():
        layers, settings = _layers(network), _settings(network)
        if _is_saved_by(pipeline, name):
            by_pipeline |= {f"{name}_lora_layers": layers, f"{name}_lora_adapter_metadata": settings}
            continue
        LoraBaseMixin.write_lora_layers(
            state_dict={f"{name}.{key}": tensor for key, tensor in layers.items()},
            save_directory=str(folder),
            is_main_process=True,
            weight_name=_own_file(name),
            save_function=None,  # safetensors
            safe_serialization=True,
            lora_adapter_metadata={f"{name}.{key}": value for key, value in settings.items()},
        )
    if by_pipeline:
        pipeline.save_lora_weights(folder, **by_pipeline)


def save_pipeline(pipeline: Any, folder: Path) -> None:
    """Writes a whole pipeline, classic or modular, into a folder that can be moved."""
    from diffusers import ModularPipeline

    is_modular = isinstance(pipeline, ModularPipeline)
    pipeline.save_pretrained(str(folder), **({"overwrite_modular_index": True} if is_modular else {}))
    without_paths(folder)


def without_paths(folder: Path) -> None:
    """Takes folders of this machine out of the files of a saved pipeline.

    diffusers writes where a part was loaded from into the part's config, and loaders set it anew; the index of a
    modular pipeline says where the parts are, and gets "." for its own folder.
    """
    for path in folder.rglob("*.json"):
        settings = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            continue
        is_changed = settings.pop("_name_or_path", None) is not None
        for part in settings.values() if path.name == "modular_model_index.json" else ():
            if isinstance(part, list) and part[2].get(_SOURCE) == str(folder):
                part[2][_SOURCE], is_changed = ".", True
        if is_changed:
            path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def file_in(folder: Path, name: str) -> str:
    """Returns the file of an exported LoRA that holds the adapter of the part `name`."""
    own = _own_file(name)
    return own if (folder.expanduser() / own).is_file() else FILE


def loading_code(pipeline: Any, names: Sequence[str]) -> list[str]:
    """Returns the Python that loads what `save_lora` wrote, where `pipe` is the pipeline and `folder` the folder."""
    has_loader = any(_is_saved_by(pipeline, name) for name in names)
    lines = [f'pipe.load_lora_weights(folder, weight_name="{FILE}")'] if has_loader else []
    for name in names:
        if not _is_saved_by(pipeline, name):
            lines += [
                f"# the pipeline's class has no loader of a LoRA of {name}",
                f'pipe.{name}.load_lora_adapter(folder, prefix="{name}", weight_name="{_own_file(name)}")',
            ]
    return lines


def write_for_comfyui(exported: Path, target: Path) -> None:
    """Writes an exported file of one network again for ComfyUI; diffusers' loaders read the result, too.

    ComfyUI does not read diffusers' header, so the scale is multiplied into the weights. A UNet gets the names of
    kohya's scripts by diffusers' conversion, Wan its own names; other transformers keep those of diffusers, which
    ComfyUI knows of the families that it maps.
    Raises ConfigError for a file without rank and alpha, with several networks, with layers that differ in rank, or
    with a DoRA, whose norms ComfyUI takes otherwise.
    """
    from diffusers.utils import convert_state_dict_to_kohya
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(exported, "pt") as file:
        settings = json.loads((file.metadata() or {}).get(_SETTINGS, "{}"))
        layers = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (the file is no mapping)
    names = sorted({key.split(".")[0] for key in layers})
    if len(names) != 1 or f"{names[0]}.r" not in settings:
        raise ConfigError(f"{exported} is no LoRA of one network with its rank in the header, as `mmrl export` writes")
    (name,) = names
    if any(settings.get(f"{name}.{kind}") for kind in ("rank_pattern", "alpha_pattern")):
        raise ConfigError(f"{exported}: a LoRA whose layers differ in rank or alpha has no file for ComfyUI")
    if settings.get(f"{name}.use_dora"):
        raise ConfigError(f"{exported}: a DoRA (lora.use_dora) has no file for ComfyUI")
    rank = settings[f"{name}.r"]
    scale = settings[f"{name}.lora_alpha"] / (math.sqrt(rank) if settings.get(f"{name}.use_rslora") else rank)
    named: dict[str, Tensor] = {key: t * scale if ".lora_B." in key else t for key, t in layers.items()}
    if name == "unet":
        named = convert_state_dict_to_kohya(named)
    elif any(re.match(r"\w+\.blocks\.\d+\.attn1\.to_q\.", key) for key in named):
        named = {f"diffusion_model.{_wan_name(key.removeprefix(f'{name}.'))}": t for key, t in named.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in named.items()}, target, {"format": "pt"})


def _layers(network: Any) -> dict[str, Tensor]:
    from peft.utils import get_peft_model_state_dict

    return {key: tensor.contiguous() for key, tensor in get_peft_model_state_dict(network).items()}


def _settings(network: Any) -> dict[str, Any]:
    return dict(network.peft_config["default"].to_dict())


def _is_saved_by(pipeline: Any, name: str) -> bool:
    """Returns whether the pipeline's class saves and loads a LoRA of the part `name`."""
    save = getattr(type(pipeline), "save_lora_weights", None)
    return save is not None and f"{name}_lora_layers" in inspect.signature(save).parameters


def _own_file(name: str) -> str:
    return f"{name}_lora_weights.safetensors"


def _wan_name(key: str) -> str:
    for theirs, own in _WAN:
        key = key.replace(theirs, own)
    return key
