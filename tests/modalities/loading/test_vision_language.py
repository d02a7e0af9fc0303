"""Model folders that are damaged are refused with what is wrong with them."""

import json
import math
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrl.core.contracts import ConfigError, Placement
from mmrl.modalities.loading.vision_language import load
from mmrl.modalities.vision_language import VisionLanguage
from tests.vision_twins import twin

LAYER = "model.language_model.layers.0.input_layernorm.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a whole model, to be damaged."""
    return shutil.copytree(twin("qwen2_5_vl"), tmp_path / "model")


def refused(folder: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        VisionLanguage(model=str(folder)).prepare(Placement(torch.device("cpu"), torch.float32))
    assert str(raised.value).startswith("modality.model: ")
    return str(raised.value)


@pytest.mark.slow
def test_models_are_loaded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers patches its classes while it loads: of two threads, one would leave them patched for good."""
    from transformers import AutoModelForImageTextToText

    stock, loading, most = AutoModelForImageTextToText.from_pretrained, [0], [0]

    def from_pretrained(*args: Any, **kwargs: Any) -> Any:
        loading[0] += 1
        most[0] = max(most[0], loading[0])
        time.sleep(0.05)
        loaded = stock(*args, **kwargs)
        loading[0] -= 1
        return loaded

    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", from_pretrained)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: load(str(twin("qwen2_5_vl")), torch.float32, None, "config.json"), range(3)))
    assert most == [1]


@pytest.mark.slow
def test_missing_weights_are_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if name != _stored(weights)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert f"lacks the weights {LAYER}; it is damaged" in refused(folder)


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_named(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[_stored(weights)][1] = value
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert f"has weights that are NaN or infinite: {LAYER}" in refused(folder)


@pytest.mark.slow
def test_weights_of_another_size_are_no_model(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[_stored(weights)] = torch.ones(1)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "as a vision-language model: RuntimeError" in refused(folder)


def test_weights_that_are_cut_short_are_no_model(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    assert "as a vision-language model: SafetensorError" in refused(folder)


def test_a_model_without_a_vocabulary_is_refused(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert "has no vocabulary: the files of its tokenizer are missing or empty" in refused(folder)


@pytest.mark.parametrize("text", ["[1]", "{bad", "{}", json.dumps({"model_type": 3}), "[" * 5000])
def test_a_config_that_says_no_architecture_is_refused(folder: Path, text: str, tmp_path: Path) -> None:
    (folder / "config.json").write_text(text)
    refused(folder)
    with pytest.raises(ConfigError, match=r"modality.model: "):
        VisionLanguage(model=str(folder)).tiny(0, tmp_path / "tiny")


def _stored(weights: dict[str, torch.Tensor]) -> str:
    """The name of the layer in the file, whose names may have another beginning."""
    return next(name for name in weights if name.endswith("layers.0.input_layernorm.weight"))
