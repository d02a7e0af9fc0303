"""Twins of vision-language models are loaded as they were saved, and the same seed writes the same bytes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.commands.check import check_tiny
from mmrl.core.config import load_config
from mmrl.modalities.tiny.text import randomise
from mmrl.modalities.tiny.vision_language import REFUSED, TWINS, UNLISTED, write_tiny
from mmrl.modalities.vision_language import VisionLanguage

NEEDS = {"smolvlm": "num2words"}  # packages that processors need
SLOW = ("qwen3_5_moe", "paligemma")  # experts and linear attention, and a processor that adds tokens


def marked(families: Any) -> list[Any]:
    """The families: two for the slow tests, the others for the exhaustive ones."""
    return [
        pytest.param(family, marks=pytest.mark.slow if family in SLOW else pytest.mark.exhaustive)
        for family in families
    ]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # numpy 2 and images of Pillow
@pytest.mark.parametrize("family", marked(TWINS))
def test_a_twin_is_loaded_as_it_was_saved(family: str, tmp_path: Path) -> None:
    if family in NEEDS:
        pytest.importorskip(NEEDS[family])
    model, _ = TWINS[family]()
    randomise(model, torch.Generator().manual_seed(3))
    write_tiny(family, 3, tmp_path)
    loaded: Any = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(loaded) is type(model)
    expected, found = dict(model.named_parameters()), dict(loaded.named_parameters())
    assert expected.keys() == found.keys()
    for name, parameter in found.items():
        assert torch.equal(parameter, expected[name]), name
        assert parameter.isfinite().all() and (parameter.numel() == 1 or parameter.std(unbiased=False) > 0), name
    processor: Any = AutoProcessor.from_pretrained(tmp_path)
    parts = [{"type": "image", "image": Image.new("RGB", (60, 40), "red")}, {"type": "text", "text": "what is this?"}]
    given = processor.apply_chat_template(
        [{"role": "user", "content": parts}],
        tokenize=True,
        return_dict=True,
        add_generation_prompt=True,
        return_tensors="pt",
    )
    text = processor.tokenizer.decode(given["input_ids"][0])
    assert "what is this?" in text and any(name.startswith("pixel_values") for name in given)
    assert int(given["input_ids"].max()) < len(processor.tokenizer)


@pytest.mark.parametrize("family", marked([*UNLISTED, *REFUSED, "smolvlm"]))
def test_a_twin_is_written_alike_for_a_seed(family: str, tmp_path: Path) -> None:
    if family in NEEDS:
        pytest.importorskip(NEEDS[family])
    state = torch.get_rng_state()
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        write_tiny(family, seed, tmp_path / name)
    assert torch.equal(state, torch.get_rng_state())
    files = {file.name for file in (tmp_path / "one").iterdir()}
    assert {"model.safetensors", "config.json", "processor_config.json", "tokenizer.json"} <= files
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "same" / file).read_bytes()
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other")}
    assert weights["one"] != weights["other"]


@pytest.mark.slow
def test_the_setting_family_names_the_twin_of_any_hub_model(tmp_path: Path) -> None:
    small = VisionLanguage(model="me/my-model", family="lfm2_vl").tiny(0, tmp_path / "one")
    assert AutoProcessor.from_pretrained(small.model).__class__.__name__ == "Lfm2VlProcessor"
    again = VisionLanguage(model=small.model).tiny(0, tmp_path / "two")  # by the folder's config
    assert (tmp_path / "one" / "config.json").read_bytes() == (tmp_path / "two" / "config.json").read_bytes()
    assert again.model == str(tmp_path / "two")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=pytest.mark.slow if family == "ovis2" else pytest.mark.exhaustive)
        for family in UNLISTED
    ],
)
def test_a_config_that_names_an_unlisted_family_runs_small(family: str) -> None:
    name = family.removesuffix("_ahead")
    model = ["threads=1", "modality.model=me/new", f"modality.family={name}", "modality.coordinates=thousand"]
    found = check_tiny(load_config("quickstart_grounding", model))
    assert found.pop("is_good"), found
    assert found["trained tensors that did not move"] == "none"
    assert found["answers share their prompt by"] == "cache"
    assert found["network calls made"] == found["network calls planned"] > 0


def test_experts_in_a_stack_keep_the_size_of_signals() -> None:
    """A stack of matrices [experts, inputs, outputs] has as many inputs as one matrix has rows."""
    module = torch.nn.Module()
    module.experts = torch.nn.ParameterDict({"up": torch.nn.Parameter(torch.zeros(4, 64, 128))})
    randomise(module, torch.Generator().manual_seed(0))
    assert float(module.experts["up"].detach().std()) == pytest.approx(1 / 8, rel=0.02)
