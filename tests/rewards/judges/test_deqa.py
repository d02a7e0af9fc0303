"""DeQA-Score against the plain use of a model of transformers, and by hand numbers."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.judges.deqa import LEVELS, Deqa
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.pictures import CPU, random_pictures, to_pil

# No truth: how good a picture is, the model says.
EXAMPLE = Example(random_batch=random_pictures)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("deqa")
    Deqa().tiny(0, made)
    return made


def ready(folder: Path, **settings: Any) -> Deqa:
    reward = Deqa(model=str(folder), **settings)
    reward.prepare(CPU)
    return reward


def five_images() -> Tensor:
    return (torch.rand(5, 3, 32, 40, generator=torch.Generator().manual_seed(0)) * 255).round() / 255


def batch_of(images: Tensor) -> RewardBatch:
    return make_batch(Outputs(images=images), [""] * len(images))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["The quality of the image is", ""])
def test_the_score_is_the_expected_level_of_the_next_word(start: str, folder: Path) -> None:
    model, processor = AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    expected = []
    for image in to_pil(five_images()):
        chat = "USER: <image>How good is it?\nASSISTANT: " + start
        with torch.no_grad():
            logits = model(**processor(text=chat, images=image, return_tensors="pt")).logits[0, -1]
        weights = [math.exp(logits[processor.tokenizer.convert_tokens_to_ids(word)]) for word in LEVELS]
        expected.append(sum(level * one for level, one in zip((5, 4, 3, 2, 1), weights, strict=True)) / sum(weights))
    found = ready(folder, question="How good is it?", start=start, questions_at_once=2).score(batch_of(five_images()))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-4)
    assert found.std() > 1e-3


@pytest.mark.slow
@in_one_test(
    ("shares", "expected"),
    [
        ((1, 0, 0, 0, 0), 5.0),
        ((0, 0, 0, 0, 1), 1.0),
        ((0.2, 0.2, 0.2, 0.2, 0.2), 3.0),
        ((0.75, 0.25, 0, 0, 0), 4.75),
        ((0, 0.1, 0, 0, 0.3), 1.75),  # what other words have does not count
    ],
)
def test_hand_numbers(
    shares: tuple[float, ...], expected: float, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = ready(folder)
    assert reward._vlm is not None
    said = torch.full((1, len(reward._vlm.tokenizer)), -1e4)
    for tokens, share in zip(reward._words, shares, strict=True):
        assert len(tokens) == 1
        said[0, tokens[0]] = math.log(share) if share else -1e4
    monkeypatch.setattr(type(reward._vlm), "next_log_probs", lambda vlm, inputs: said)
    assert reward.score(batch_of(five_images()[:1])).tolist() == pytest.approx([expected])


@pytest.mark.slow
def test_levels_and_models_that_do_not_fit_are_the_users_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the level 'superb' must be one token"):
        ready(folder, levels=("superb", *LEVELS[1:]))
    with pytest.raises(ValueError, match="five different words, got good, Good"):
        Deqa(levels=("good", "Good", "fair", "poor", "bad"))
    with pytest.raises(ConfigError, match="cannot load the vision-language model '/no/such"):
        Deqa(model="/no/such").prepare(CPU)
    with pytest.raises(ValueError, match="NaN or infinity"):
        ready(folder).score(batch_of(five_images() / 0))
