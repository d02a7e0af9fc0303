"""The architecture of a model that may not be here: from its folder, the cache of the hub, or a table of known ones."""

import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mmrl.core.contracts import ConfigError
from mmrl.system import spelling

_TABLE = "architectures.json"
_BY_TABLE = "the sizes of {model} are of mmrl's own table; a config.json in its folder or in the cache goes before"
NETWORKS = ("transformer", "transformer_2", "unet")  # of pipelines, those that are trained


@dataclass(frozen=True)
class Part:
    """A network of a model: its class and the settings that it is made of."""

    library: str  # diffusers or transformers
    kind: str  # the name of its class there
    config: Mapping[str, Any]

    def make(self, **changes: Any) -> Any:
        """Returns the network, new; `changes`: settings in the place of its own."""
        import diffusers
        import transformers

        library: Any = diffusers if self.library == "diffusers" else transformers
        kind, config = getattr(library, self.kind), {**self.config, **changes}
        return kind.from_config(config) if self.library == "diffusers" else kind(kind.config_class(**config))

    def setting(self, name: str) -> Any:
        """Returns a setting of the network, by default that of its class; None where it has none of this name."""
        import diffusers

        default = inspect.signature(getattr(diffusers, self.kind).__init__).parameters.get(name)
        return self.config.get(name, None if default is None else default.default)


@dataclass(frozen=True)
class Architecture:
    """The networks of a model by name, and what is known of the parts that only encode text."""

    parts: Mapping[str, Part]
    encoders: int = 0  # weights of the text encoders
    text_tokens: int = 0  # of an encoded prompt; 0: unknown
    notes: tuple[str, ...] = ()  # what to say of where the sizes come from


def architecture_of(model: str) -> Architecture:
    """Returns the architecture of a hub name or a folder. Raises ConfigError where neither files nor the table tell."""
    if (found := _in_files(model)) is not None:
        return found
    if model in known():
        entry = known()[model]
        parts = {name: Part(one["library"], one["class"], one["config"]) for name, one in entry["parts"].items()}
        return Architecture(
            parts, entry.get("encoders", 0), entry.get("text_tokens", 0), (_BY_TABLE.format(model=model),)
        )
    raise ConfigError(
        f"the forecast of memory: the sizes of {model!r} are not known{spelling.near(model, list(known()))}; put the "
        "model, or only its config.json (of a pipeline: those of transformer and vae), into the cache of the hub or a "
        f"folder. "
        f"Known without files: {', '.join(known())}"
    )


@cache
def known() -> Mapping[str, Any]:
    """Returns the table of published architectures by hub name."""
    table: Mapping[str, Any] = json.loads((Path(__file__).parent / _TABLE).read_text(encoding="utf-8"))["models"]
    return table


def _in_files(model: str) -> Architecture | None:
    """Returns what the files of a model say; None where there are none."""
    if (config := _file(model, "config.json")) is not None:
        from transformers import AutoConfig, AutoModelForImageTextToText

        read = AutoConfig.from_pretrained(str(config.parent))
        mapping: Any = AutoModelForImageTextToText._model_mapping
        return Architecture({"model": Part("transformers", mapping[type(read)].__name__, read.to_dict())})
    parts = {}
    for name in (*NETWORKS, "vae"):
        if (config := _file(model, f"{name}/config.json")) is not None:
            content = json.loads(config.read_text(encoding="utf-8"))
            parts[name] = Part("diffusers", content["_class_name"], content)
    folder = Path(model).expanduser()
    weights = sum(_num_weights(file) for file in folder.glob("text_encoder*/*.safetensors")) if folder.is_dir() else 0
    return Architecture(parts, weights) if parts else None


def _file(model: str, name: str) -> Path | None:
    path = Path(model).expanduser()
    if path.is_dir():
        return path / name if (path / name).is_file() else None
    if model.count("/") != 1:
        return None
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(model, name)
    return Path(found) if isinstance(found, str) else None


def _num_weights(file: Path) -> int:
    """Returns how many weights a safetensors file holds, by its header."""
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118  # it is no mapping
