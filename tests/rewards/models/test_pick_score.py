"""PickScore against the processor and the model of transformers, as its model card uses them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import CLIPModel, CLIPProcessor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.base.networks.clip import write_tiny_clip
from mmrl.rewards.models.pick_score import PickScore
from tests.parameters import in_one_test
from tests.rewards.example import Example
from tests.rewards.pictures import CPU, random_pictures, to_pil

# No truth: a model of taste. Divided by 100, float32's noise is as small as that of other scores.
EXAMPLE = Example(random_batch=random_pictures, settings={"divisor": 100.0})
TEXTS = ["a red circle", "two blue squares, please", "naïve café 🙂"]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> PickScore:
    return PickScore().tiny(0, tmp_path_factory.mktemp("pick_score"))


@pytest.mark.slow
@pytest.mark.parametrize("divisor", [1.0, 26.0])
def test_the_score_is_the_published_formula(
    divisor: float, twin: PickScore, make_batch: Callable[..., RewardBatch]
) -> None:
    images = (torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 255).round() / 255
    reward = PickScore(model=twin.model, processor=None, divisor=divisor)
    reward.prepare(CPU)
    found = reward.score(make_batch(Outputs(images=images), TEXTS))

    model, processor = CLIPModel.from_pretrained(twin.model), CLIPProcessor.from_pretrained(twin.model)
    with torch.no_grad():
        pixels = processor(images=to_pil(images), return_tensors="pt")
        tokens = processor(text=TEXTS, padding=True, truncation=True, max_length=77, return_tensors="pt")
        left = model.get_image_features(**pixels).pooler_output
        right = model.get_text_features(**tokens).pooler_output
        left, right = left / left.norm(dim=-1, keepdim=True), right / right.norm(dim=-1, keepdim=True)
        expected = (model.logit_scale.exp() * right @ left.T).diagonal() / divisor
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 / divisor)
    assert found.std() > 1 / divisor


@pytest.mark.slow
def test_the_temperature_is_the_models_own(tmp_path: Path, make_batch: Callable[..., RewardBatch]) -> None:
    scores = []
    for name, logarithm in (("cold", 0.0), ("warm", 2.0)):
        write_tiny_clip("transformers", tmp_path / name, 0, embedding=4, logit_scale=logarithm)
        reward = PickScore(model=str(tmp_path / name), processor=None)
        reward.prepare(CPU)
        images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        scores.append(reward.score(make_batch(Outputs(images=images), TEXTS)))
    torch.testing.assert_close(scores[1], scores[0] * 7.389056)  # e ** 2


@pytest.mark.slow
def test_the_processor_may_live_elsewhere(twin: PickScore, tmp_path: Path) -> None:
    CLIPModel.from_pretrained(twin.model).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="cannot load the CLIP"):
        PickScore(model=str(tmp_path), processor=None).prepare(CPU)
    PickScore(model=str(tmp_path), processor=twin.model).prepare(CPU)


def test_the_defaults_are_the_papers() -> None:
    assert PickScore().model == "yuvalkirstain/PickScore_v1"
    assert PickScore().processor == "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    assert PickScore().range == (-100.0, 100.0)
    assert PickScore(divisor=26.0).range == pytest.approx((-3.846154, 3.846154))


@in_one_test("divisor", [0.0, -1.0, float("nan"), float("inf")])
def test_settings_are_checked(divisor: float) -> None:
    with pytest.raises(ValueError, match="divisor must be above 0"):
        PickScore(divisor=divisor)
