"""VQAScore against the plain use of a model of transformers."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.modalities.tiny.vision_language import BUILDERS
from mmrl.rewards.base.networks.vlm import load_vlm
from mmrl.rewards.judges.vqa_score import VqaScore
from tests.rewards.example import Example
from tests.rewards.pictures import CPU, random_pictures, to_pil
from tests.vision_twins import twin

# No truth: whether an image shows a text is what the model says. A random one hardly ever says yes or no, so that only
# the share of yes in both comes near the ends.
EXAMPLE = Example(random_batch=random_pictures, settings={"normalised": True})
TEXTS = ['a "red" circle', "two blue squares, please, on the lawn behind the house", "naïve café 🙂", "{prompt} {0}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("vqa_score")
    VqaScore().tiny(0, made)
    return made


def ready(folder: Path, **settings: Any) -> VqaScore:
    reward = VqaScore(model=str(folder), **settings)
    reward.prepare(CPU)
    return reward


def four_images() -> Tensor:
    return (torch.rand(4, 3, 32, 40, generator=torch.Generator().manual_seed(0)) * 255).round() / 255


def distributions(folder: Path, template: str) -> Tensor:
    """[4, V]: what the model says first, asked one at a time without padding; the chat is written by hand."""
    model, processor = AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    found = []
    for image, text in zip(to_pil(four_images()), TEXTS, strict=True):
        chat = "USER: <image>" + template % text + "\nASSISTANT: "
        with torch.no_grad():
            logits = model(**processor(text=chat, images=image, return_tensors="pt")).logits[0, -1]
        found.append(logits.softmax(0))
    return torch.stack(found)


@pytest.mark.slow
def test_the_score_is_the_probability_of_yes(folder: Path, make_batch: Callable[..., RewardBatch]) -> None:
    batch = make_batch(Outputs(images=four_images()), TEXTS)
    said = distributions(folder, 'Does this figure show "%s"? Please answer yes or no.')
    tokens = AutoProcessor.from_pretrained(folder).tokenizer
    yes, no = (said[:, tokens.convert_tokens_to_ids(word)] for word in ("Yes", "No"))
    torch.testing.assert_close(ready(folder).score(batch), yes, rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(ready(folder, normalised=True).score(batch), yes / (yes + no), rtol=1e-4, atol=1e-8)
    assert (yes / (yes + no)).std() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("family", BUILDERS)
def test_a_batch_of_each_family_is_answered_as_one_by_one(family: str) -> None:
    vlm = load_vlm(str(twin(family)), CPU)
    images, tokens = to_pil(four_images()), [vlm.token("red"), vlm.token("blue")]
    together = vlm.log_probs([[image] for image in images], TEXTS, tokens)
    alone = [vlm.log_probs([[image]], [text], tokens) for image, text in zip(images, TEXTS, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_question_and_answers_may_be_others(folder: Path, make_batch: Callable[..., RewardBatch]) -> None:
    batch = make_batch(Outputs(images=four_images()), TEXTS)
    reward = ready(folder, question='Is this "{prompt}"?', yes="1", no="0", normalised=True)
    said = distributions(folder, 'Is this "%s"?')
    one, nought = (said[:, AutoProcessor.from_pretrained(folder).tokenizer.convert_tokens_to_ids(w)] for w in "10")
    torch.testing.assert_close(reward.score(batch), one / (one + nought), rtol=1e-4, atol=1e-8)


@pytest.mark.slow
def test_the_answer_sees_image_and_text(folder: Path, make_batch: Callable[..., RewardBatch]) -> None:
    reward, images = ready(folder, normalised=True), four_images()
    first = reward.score(make_batch(Outputs(images=images), TEXTS))
    other_image = reward.score(make_batch(Outputs(images=1 - images), TEXTS))
    other_text = reward.score(make_batch(Outputs(images=images), TEXTS[::-1]))
    assert (first - other_image).abs().min() > 1e-4 and (first - other_text).abs().min() > 1e-4


@pytest.mark.slow
def test_a_model_without_logits_to_keep_says_the_same(
    folder: Path, make_batch: Callable[..., RewardBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(Outputs(images=four_images()), TEXTS)
    reward = ready(folder)
    expected = reward.score(batch)
    assert reward._vlm is not None
    forward = reward._vlm.model.forward
    monkeypatch.setattr(reward._vlm.model, "forward", lambda use_cache, **inputs: forward(**inputs))
    torch.testing.assert_close(reward.score(batch), expected)


@pytest.mark.slow
def test_an_answer_of_several_tokens_is_the_users_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"'Maybe' must be one token, got \d with this model's tokenizer"):
        ready(folder, yes="Maybe")
    ready(folder, no="Maybe")  # which is not asked for


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"question must hold \{prompt\}"):
        VqaScore(question="Is it good?")
    with pytest.raises(ValueError, match="yes and no must differ"):
        VqaScore(yes="No", normalised=True)


@pytest.mark.slow
def test_a_model_that_is_not_there_or_cannot_answer_is_the_users_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot load the vision-language model '/no/such"):
        load_vlm("/no/such", CPU)
    shutil.copytree(folder, tmp_path / "mute")
    (tmp_path / "mute" / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="has no chat template"):
        load_vlm(str(tmp_path / "mute"), CPU)


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_image_with_nan_cannot_be_judged(value: float, folder: Path, make_batch: Callable[..., RewardBatch]) -> None:
    images = four_images()
    images[1, 0, 0, 0] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        ready(folder).score(make_batch(Outputs(images=images), TEXTS))
