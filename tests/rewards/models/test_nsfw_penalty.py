"""The penalty for unsafe images against transformers' own preprocessing, and by hand numbers."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import ViTForImageClassification, ViTImageProcessor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.models.nsfw_penalty import NsfwPenalty
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.pictures import CPU, random_pictures, smooth_images, to_pil

# No truth: a random classifier finds anything safe or unsafe. The threshold is low, so that most images are punished.
EXAMPLE = Example(random_batch=random_pictures, settings={"threshold": 0.05})


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> NsfwPenalty:
    return NsfwPenalty(threshold=0).tiny(0, tmp_path_factory.mktemp("nsfw"))


def batch_of(images: Tensor) -> RewardBatch:
    return make_batch(Outputs(images=images), [""] * len(images))


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 83), (20, 27)])
def test_the_probability_is_that_of_transformers(height: int, width: int, twin: NsfwPenalty) -> None:
    twin.prepare(CPU)
    images = (smooth_images(height, width) * 255).round() / 255
    pixels = ViTImageProcessor.from_pretrained(twin.model)(images=to_pil(images), return_tensors="pt")
    with torch.no_grad():
        logits = ViTForImageClassification.from_pretrained(twin.model)(**pixels).logits
    expected = -logits.exp()[:, 1] / logits.exp().sum(1)
    found = twin.score(batch_of(images))
    rounding = 0.0 if (height, width) == (32, 32) else 5e-3  # the processor rounds to 8 bits after resizing
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 + rounding)
    assert found.std() > 1e-3


@pytest.mark.slow
@in_one_test(
    ("threshold", "expected"),
    [(0.0, -0.8), (0.5, -0.6), (0.75, -0.2), (0.8, 0.0), (0.9, 0.0)],  # p = 0.8
)
def test_hand_numbers(threshold: float, expected: float, twin: NsfwPenalty) -> None:
    reward = replace(twin, threshold=threshold)
    reward.prepare(CPU)
    head = reward._classifier.classifier
    head.weight.zero_()
    head.bias.copy_(torch.tensor([0.0, math.log(4)]))
    assert reward.score(batch_of(smooth_images(32, 32))).tolist() == pytest.approx([expected] * 4, abs=1e-6)


@pytest.mark.slow
def test_the_category_decides_which_probability_counts(twin: NsfwPenalty) -> None:
    other = replace(twin, category="normal")
    batch = batch_of(smooth_images(32, 32))
    for reward in (twin, other):
        reward.prepare(CPU)
    torch.testing.assert_close(twin.score(batch) + other.score(batch), -torch.ones(4))


@pytest.mark.slow
def test_what_cannot_be_loaded_is_the_users_error(twin: NsfwPenalty) -> None:
    with pytest.raises(ConfigError, match="has no label 'unsafe'; it has normal, nsfw"):
        replace(twin, category="unsafe").prepare(CPU)
    with pytest.raises(ConfigError, match="cannot load the classifier '/no/such"):
        NsfwPenalty(model="/no/such").prepare(CPU)


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threshold"):
        NsfwPenalty(threshold=1.0)
