"""docs/models.md is what modalities, families and the shipped configs say."""

import re

import models_page
import pytest

from mmrl.core import plugins
from mmrl.core.config import read_yaml, shipped_names
from mmrl.modalities.encoding.families import FAMILIES

TEXT = models_page.FILE.read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.slow
def test_the_page_is_what_the_script_writes() -> None:
    assert models_page.page() == TEXT, "run: python scripts/models_page.py"


@pytest.mark.parametrize("kind", ["modalities", "environments"])
def test_every_modality_and_environment_is_named(kind: plugins.Kind) -> None:
    found = re.findall(r"^\| \[`(\w+)`\]", section(kind.capitalize()), flags=re.MULTILINE)
    assert sorted(found) == plugins.names(kind)


def test_image_models_come_first_and_say_what_is_trained() -> None:
    text = section("Modalities")
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert "[`diffusers_pipeline`]" in rows[0] and "by LoRA or all their weights" in rows[0]
    assert "`StableDiffusion3Pipeline`" in rows[1] and "the transformer, by LoRA or all its weights" in rows[1]
    assert "`StableDiffusionPipeline`" in rows[2] and "the U-Net" in rows[2]
    assert "[`agent`]" in rows[-1] and "the vision tower frozen or trained" in rows[-1]


def test_every_family_is_named_with_what_its_tests_run() -> None:
    rows = re.findall(
        r"^\| .+ \(`(\w+)`\) \| (.+?) \| (.+?) \| (yes|no) \|$",
        section("Families of vision-language models"),
        flags=re.MULTILINE,
    )
    assert [row[0] for row in rows] == [family.name for family in FAMILIES]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["qwen2_5_vl"] == ("`qwen2_5_vl_text`", "pixels of the resized image", "yes")
    assert by_name["internvl"] == ("`qwen2`", "0 to 1000", "yes")
    assert by_name["smolvlm"][0].startswith("none") and by_name["gemma3"][2] == "no"


@pytest.mark.slow
def test_every_config_of_real_size_stands_with_its_model() -> None:
    rows = re.findall(
        r"^\| \[(.+?)\]\(.+?\) \| \[`(\w+)`\]\(.+?\) \| (.+) \|$",
        section("Models of the shipped configs"),
        flags=re.MULTILINE,
    )
    found = {
        name: (model, modality) for model, modality, configs in rows for name in re.findall(r"\[`(\w+)`\]", configs)
    }
    modalities = {name: read_yaml(name)["modality"] for name in shipped_names() if not name.startswith("families/")}
    expected = {
        name: (one["model"], one["name"]) for name, one in modalities.items() if not one["model"].startswith("lab:")
    }
    assert found == expected and len(expected) > 20


def test_a_family_without_a_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {key: name for key, name in models_page.NAMES.items() if key != "gemma3"}
    monkeypatch.setattr(models_page, "NAMES", names | {"gemma9": "Gemma 9"})
    with pytest.raises(ValueError, match=r"each family once; see \['gemma3', 'gemma9'\]"):
        models_page.page()
