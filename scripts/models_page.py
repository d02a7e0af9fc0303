"""Writes docs/models.md from modalities, families and shipped configs: `python scripts/models_page.py`."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from page_tables import config_link, plugin_link, summary, table
from settings_source import escaped, settings

from mmrl.core import plugins
from mmrl.core.config import load_config, shipped_names
from mmrl.modalities.diffusers_pipeline import DiffusersPipeline
from mmrl.modalities.encoding.families import FAMILIES, Family
from mmrl.modalities.flow.diffusers_policy import DiffusersPolicy, PipelinePolicy
from mmrl.modalities.video import ONE_SIZE
from mmrl.modalities.vision_language import VisionLanguage

FILE = Path(__file__).parents[1] / "docs" / "models.md"
NAMES = {  # of families of vision-language models, by the `model_type` of transformers
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen2_vl": "Qwen2-VL",
    "qwen3_vl": "Qwen3-VL",
    "internvl": "InternVL",
    "smolvlm": "SmolVLM",
    "idefics3": "Idefics3",
    "llava_onevision": "LLaVA-OneVision",
    "gemma3": "Gemma 3",
}
UNITS = {"resized": "pixels of the resized image", "thousand": "0 to 1000", "unit": "0 to 1"}
HEAD = """# Every model

Written from the code by `python scripts/models_page.py`. A *modality* is a kind of model with what it makes; `model` in
its section of a config is a hub name, a folder as diffusers or transformers saves it, or `lab:NAME` for the tiny model
of an [embedded lab](lab.md). Frozen weights are in the run's `precision` (float32, bfloat16 or float16), trained
weights in float32.

## Modalities
"""
FAMILIES_HEAD = """
## Families of vision-language models

For `vision_language`, `gui`, `video` and `agent`. A model of another type of transformers (image-text-to-text) is
compared with its own forward pass when it is loaded, and refused where its log-probs differ.
"""
CONFIGS_HEAD = """
## Models of the shipped configs

Each can be another one of its family: `modality.model=...`. The configs of families/ have [a page](families.md). All
configs of the labs train tiny models of their own, written and spoilt on the spot ([lab.md](lab.md)).
"""
ENVIRONMENTS_HEAD = """
## Environments

What an `agent` acts in; [environments.md](environments.md) says how to write one.
"""


def page() -> str:
    """Returns the page. Raises ValueError where NAMES lacks a family, or holds one that is unknown."""
    if wrong := sorted({family.name for family in FAMILIES}.symmetric_difference(NAMES)):
        raise ValueError(f"NAMES of scripts/models_page.py must hold each family once; see {wrong}")
    modalities = table(
        ("modality", "models", "what is trained"), map(row_of, sorted(plugins.names("modalities"), key=place))
    )
    families = table(("family", "language model in tests", "coordinates", "videos"), map(row_of_family, FAMILIES))
    models = table(("model", "modality", "configs"), rows_of_models())
    names = plugins.names("environments")
    environments = table(
        ("environment", "what it is"),
        [(plugin_link("environments", name), summary("environments", name)) for name in names],
    )
    return "\n".join(
        [HEAD, modalities, FAMILIES_HEAD, families, CONFIGS_HEAD, models, ENVIRONMENTS_HEAD, environments, ""]
    )


def place(name: str) -> tuple[int, int]:
    """Returns what modalities are sorted by: what they make, and the class that they inherit from first."""
    cls = plugins.find("modalities", name)
    assert issubclass(cls, DiffusersPolicy | VisionLanguage), name
    return ("latents", "tokens", "turns").index(cls.sample_kind), len(cls.__mro__)


def row_of(name: str) -> tuple[str, str, str]:
    """Returns the cells of a modality."""
    cls = plugins.find("modalities", name)
    if issubclass(cls, PipelinePolicy):
        title = summary("modalities", name).partition(":")[0]
        sentence = " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())
        trained = f"the {words_of(cls.network)}, by LoRA or all its weights"
        return plugin_link("modalities", name), f"{title}. {escaped(sentence)}", trained
    if issubclass(cls, DiffusersPipeline):
        trained = "the transformers or the U-Net, by LoRA or all their weights"
        text = summary("modalities", name) + " [Families](families.md) that were compared with diffusers."
        return plugin_link("modalities", name), text, trained
    assert issubclass(cls, VisionLanguage), name
    vision = " or ".join(get_args(settings(cls)["vision"]))
    trained = f"the language model, by LoRA or all its weights; the vision tower {vision}"
    return plugin_link("modalities", name), summary("modalities", name), trained


def words_of(network: str) -> str:
    return {"unet": "U-Net"}.get(network, network)


def row_of_family(family: Family) -> tuple[str, ...]:
    """Returns the cells of a family."""
    assert family.convention is not None, "of a listed family"
    language = "none: compared when it is loaded" if family.language is None else f"`{family.language}`"
    has_video = family.name in ONE_SIZE or family.name.startswith("qwen")  # the Qwens have grids of patches
    return f"{NAMES[family.name]} (`{family.name}`)", language, UNITS[family.convention], "yes" if has_video else "no"


def rows_of_models() -> Iterator[tuple[str, str, str]]:
    """Yields the models of the shipped configs that are no lab's, with the configs that train them."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in shipped_names():
        if name.startswith("families/"):
            continue
        modality = load_config(name).modality
        if not modality["model"].startswith("lab:"):
            found.setdefault((modality["model"], modality["name"]), []).append(name)
    for (model, kind), configs in sorted(found.items()):
        link = f"[{model}](https://huggingface.co/{model})"
        yield link, plugin_link("modalities", kind), ", ".join(map(config_link, configs))


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    print(FILE)
