"""The aesthetic predictor against a forward pass written out by hand."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPModel, CLIPProcessor

from mmrl.core.contracts import ConfigError, Placement, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.models.aesthetic import Aesthetic
from tests.rewards.example import Example
from tests.rewards.pictures import random_pictures

EXAMPLE = Example(random_batch=random_pictures)  # no truth: a model of taste
CPU = Placement(torch.device("cpu"), torch.float32)
PUBLISHED = {
    "layers.0.weight": (1024, 768),
    "layers.0.bias": (1024,),
    "layers.2.weight": (128, 1024),
    "layers.2.bias": (128,),
    "layers.4.weight": (64, 128),
    "layers.4.bias": (64,),
    "layers.6.weight": (16, 64),
    "layers.6.bias": (16,),
    "layers.7.weight": (1, 16),
    "layers.7.bias": (1,),
}


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Aesthetic:
    return Aesthetic().tiny(0, tmp_path_factory.mktemp("aesthetic"))


def test_the_head_has_the_published_names_and_shapes(twin: Aesthetic) -> None:
    assert {name: tuple(value.shape) for name, value in load_file(twin.head).items()} == PUBLISHED


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_the_score_is_the_linear_head_on_the_embedding_of_length_one(
    suffix: str, twin: Aesthetic, tmp_path: Path, make_batch: Callable[..., RewardBatch]
) -> None:
    generator = torch.Generator().manual_seed(4)
    weights = {name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for name, shape in PUBLISHED.items()}
    head = tmp_path / f"head{suffix}"
    save_file(weights, head) if suffix == ".safetensors" else torch.save(weights, head)
    reward = Aesthetic(model=twin.model, head=str(head))
    reward.prepare(CPU)
    levels = (torch.rand(3, 32, 32, 3, generator=generator) * 255).to(torch.uint8)
    images = levels.permute(0, 3, 1, 2) / 255
    found = reward.score(make_batch(Outputs(images=images), ["", "", ""]))

    processor, model = CLIPProcessor.from_pretrained(twin.model), CLIPModel.from_pretrained(twin.model)
    pixels = processor(images=[Image.fromarray(level.numpy()) for level in levels], return_tensors="pt")
    with torch.no_grad():
        value = model.get_image_features(**pixels).pooler_output.double().numpy()
    value = value / np.sqrt((value**2).sum(1, keepdims=True))
    for layer in (0, 2, 4, 6, 7):
        value = value @ weights[f"layers.{layer}.weight"].double().numpy().T + weights[f"layers.{layer}.bias"].numpy()
    torch.testing.assert_close(found, torch.from_numpy(value[:, 0]).float(), rtol=0, atol=1e-5)
    assert found.std() > 1e-3


def test_a_head_of_another_shape_is_the_users_error(twin: Aesthetic, tmp_path: Path) -> None:
    wrong = {**load_file(twin.head), "layers.7.weight": torch.zeros(1, 17)}
    save_file(wrong, tmp_path / "head.safetensors")
    with pytest.raises(ConfigError, match=r"(?s)does not hold the aesthetic head.*mismatch for layers\.7\.weight"):
        Aesthetic(model=twin.model, head=str(tmp_path / "head.safetensors")).prepare(CPU)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_damaged_head_is_the_users_error(suffix: str, twin: Aesthetic, tmp_path: Path) -> None:
    (tmp_path / f"head{suffix}").write_bytes(b"not weights")
    with pytest.raises(ConfigError, match="does not hold the aesthetic head"):
        Aesthetic(model=twin.model, head=str(tmp_path / f"head{suffix}")).prepare(CPU)


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code of the file ran')",)


def test_a_head_that_carries_code_is_not_run(twin: Aesthetic, tmp_path: Path) -> None:
    torch.save({"layers.0.weight": Trap()}, tmp_path / "head.pth")
    with pytest.raises(ConfigError, match="UnpicklingError"):
        Aesthetic(model=twin.model, head=str(tmp_path / "head.pth")).prepare(CPU)


def test_a_head_that_is_not_there_is_the_users_error(twin: Aesthetic) -> None:
    with pytest.raises(ConfigError, match="no aesthetic head '/no/such/head"):
        Aesthetic(model=twin.model, head="/no/such/head.pth").prepare(CPU)


@pytest.mark.slow
def test_a_clip_of_another_width_is_the_users_error(
    twin: Aesthetic, tmp_path: Path, make_batch: Callable[..., RewardBatch]
) -> None:
    from mmrl.rewards.base.networks.clip import write_tiny_clip

    write_tiny_clip("transformers", tmp_path, 0, embedding=512)
    reward = Aesthetic(model=str(tmp_path), head=twin.head)
    reward.prepare(CPU)
    with pytest.raises(ConfigError, match="needs embeddings of 768 numbers, got 512"):
        reward.score(make_batch(Outputs(images=torch.rand(1, 3, 32, 32)), [""]))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="head must be a file that ends in"):
        Aesthetic(head="head.bin")
