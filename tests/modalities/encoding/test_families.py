"""Families are told by name and have twins; what no family reads is not trained."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from mmrl.core.contracts import ConfigError, Placement
from mmrl.core.data import Prompt
from mmrl.modalities.encoding.families import FAMILIES, family_of, family_of_name, unread
from mmrl.modalities.loading.lora import Lora
from mmrl.modalities.tiny.vision_language import BUILDERS, write_tiny
from mmrl.modalities.vision_language import VisionLanguage
from tests.parameters import in_one_test
from tests.vision_twins import picture


@in_one_test(
    ("names", "family"),
    [
        (("Qwen/Qwen2.5-VL-3B-Instruct", "ByteDance-Seed/UI-TARS-1.5-7B"), "qwen2_5_vl"),
        (("Qwen/Qwen2-VL-2B-Instruct", "ByteDance-Seed/UI-TARS-7B-DPO"), "qwen2_vl"),
        (("Qwen/Qwen3-VL-4B-Instruct",), "qwen3_vl"),
        (("OpenGVLab/InternVL3-1B-hf",), "internvl"),
        (("HuggingFaceTB/SmolVLM-256M-Instruct",), "smolvlm"),
        (("HuggingFaceM4/Idefics3-8B-Llama3",), "idefics3"),
        (("llava-hf/llava-onevision-qwen2-0.5b-ov-hf",), "llava_onevision"),
        (("google/gemma-3-4b-it",), "gemma3"),
    ],
)
def test_the_family_is_told_by_the_hub_name(names: Sequence[str], family: str) -> None:
    assert [found and found.name for found in map(family_of_name, names)] == [family] * len(names)


def test_a_name_that_tells_no_family_needs_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set modality\.family to one of qwen2_vl, .*, qwen3_5, .*, smolvlm"):
        VisionLanguage(model="me/my-model").tiny(0, tmp_path)
    with pytest.raises(ConfigError, match="there is no tiny twin of 'llama'; there are twins of qwen2_vl"):
        VisionLanguage(model="me/my-model", family="llama").tiny(0, tmp_path)
    assert family_of("llama").convention is None
    assert {family_of(name).convention for name in ("qwen3_vl_moe", "qwen3_5", "glm4v")} == {"thousand"}
    assert {family.name for family in FAMILIES} >= set(BUILDERS)


@pytest.mark.slow
def test_a_twin_keeps_the_settings_and_fits_any_prompt(tmp_path: Path) -> None:
    settings = {"lora": Lora(rank=64, alpha=128), "max_pixels": 10**6, "max_prompt_tokens": 50, "sharing": "packed"}
    small = VisionLanguage(model="Qwen/Qwen2.5-VL-3B-Instruct", **settings).tiny(3, tmp_path)  # type: ignore[arg-type]
    assert small.lora == Lora(rank=4, alpha=128) and small.sharing == "packed"
    small.prepare(Placement(torch.device("cpu"), torch.float32))
    assert len(small.encode([Prompt("x" * 500, (picture(900, 700, 1),))])[0]) > 500


@pytest.mark.slow
@pytest.mark.parametrize("family", BUILDERS)
def test_a_twin_is_written_alike_for_a_seed_and_leaves_the_global_generator(family: str, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        write_tiny(family, seed, tmp_path / name)
    assert torch.equal(state, torch.get_rng_state())
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "same", "other")}
    assert weights["one"] == weights["same"] != weights["other"]
    for file in ("tokenizer.json", "config.json", "processor_config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "same" / file).read_bytes()


@in_one_test(
    ("name", "layer", "is_unread"),
    [
        ("model.vision_tower.encoder.layers.3.mlp.fc1.weight", -1, False),
        ("model.vision_tower.encoder.layers.3.mlp.fc1.weight", -2, True),
        ("model.vision_tower.encoder.layers.2.mlp.fc1.weight", -2, False),
        ("model.vision_tower.post_layernorm.weight", -1, True),
        ("model.vision_tower.post_layernorm.weight", None, False),
        ("model.vision_tower.head.probe", None, True),
        ("model.language_model.layers.9.mlp.weight", -2, False),
    ],
)
def test_what_lies_behind_the_layer_that_is_read_is_not_trained(name: str, layer: int | None, is_unread: bool) -> None:
    class Config:
        model_type = "llava_onevision"
        vision_feature_layer = layer
        vision_config = type("Vision", (), {"num_hidden_layers": 4})

    assert unread(name, Config()) is is_unread
