"""The judge of pairs against the plain use of a model of transformers, asked about one pair at a time."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
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
from mmrl.rewards.judges.pairwise_judge import PairwiseJudge
from tests.rewards.example import Example
from tests.rewards.pictures import CPU, random_images, random_pictures, to_pil
from tests.vision_twins import twin

# No truth: which image is better is what the model says.
EXAMPLE = Example(random_batch=random_pictures, settings={"soft": True})
PROMPTS = ['a "red" circle'] * 3 + ["two blue squares, please, on the lawn behind the house"] * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pairwise_judge")
    PairwiseJudge().tiny(0, made)
    return made


@pytest.fixture
def batch(make_batch: Callable[..., RewardBatch]) -> RewardBatch:
    """Two groups of three images."""
    import random

    made = make_batch(Outputs(images=random_images(random.Random(1), 6)), PROMPTS)
    return replace(made, group=torch.tensor([0, 0, 0, 1, 1, 1]))


def ready(folder: Path, **settings: Any) -> PairwiseJudge:
    reward = PairwiseJudge(model=str(folder), **settings)
    reward.prepare(CPU)
    return reward


def first_beats_second(folder: Path, batch: RewardBatch) -> Tensor:
    """[6, 6] P("1") / (P("1") + P("2")) of each pair in a group, from one plain forward pass each; else 0."""
    model, processor = AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    one, two = (processor.tokenizer.convert_tokens_to_ids(word) for word in "12")
    assert batch.outputs.images is not None
    images, found = to_pil(batch.outputs.images), torch.zeros(6, 6)
    for first, second in permutations(range(6), 2):
        if batch.group[first] != batch.group[second]:
            continue
        question = PairwiseJudge.question.replace("{prompt}", batch.prompts[first].text)
        chat = f"USER: <image><image>{question}\nASSISTANT: "
        with torch.no_grad():
            inputs = processor(text=chat, images=[images[first], images[second]], return_tensors="pt")
            said = model(**inputs).logits[0, -1].softmax(0)
        found[first, second] = said[one] / (said[one] + said[two])
    return found


def by_hand(wins: Tensor) -> list[float]:
    """Win rates of two groups of three, in a loop."""
    rates = []
    for mine in range(6):
        others = [other for other in range(6) if other != mine and other // 3 == mine // 3]
        rates.append(sum(float(wins[mine, o]) + 1 - float(wins[o, mine]) for o in others) / 4)
    return rates


@pytest.mark.slow
def test_it_is_the_share_of_wins_over_both_orders(folder: Path, batch: RewardBatch) -> None:
    wins = first_beats_second(folder, batch)
    soft = ready(folder, soft=True).score(batch)
    assert soft.tolist() == pytest.approx(by_hand(wins), abs=1e-4) and soft.std() > 0.001
    hard = ready(folder).score(batch)
    assert hard.tolist() == pytest.approx(by_hand((wins > 0.5).float()), abs=1e-6)
    for rates in (soft, hard):
        assert rates.view(2, 3).mean(1).tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.slow
def test_groups_of_any_size_may_lie_among_each_other(
    folder: Path, batch: RewardBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward, better = ready(folder, questions_at_once=3), [3, 9, 1, 2, 5, 4]  # how good each image is
    images = torch.linspace(0, 1, 6)[:, None, None, None].expand(6, 3, 8, 8)
    batch = replace(batch, outputs=Outputs(images=images), group=torch.tensor([4, 2, 4, 4, 2, 9]))
    place = {image.tobytes(): row for row, image in enumerate(to_pil(images))}

    def first_wins(shown: list[list[Any]], prompts: list[str]) -> Tensor:
        pairs = [[better[place[image.tobytes()]] for image in images] for images in shown]
        return torch.tensor([float(first > second) for first, second in pairs])

    monkeypatch.setattr(reward, "_first_wins", first_wins)
    assert reward.score(batch).tolist() == [1.0, 1.0, 0.0, 0.5, 0.0, 0.5]


@pytest.mark.slow
def test_a_judge_of_opposite_words_says_the_opposite(folder: Path, batch: RewardBatch) -> None:
    usual, flipped = ready(folder, soft=True), ready(folder, soft=True, first="2", second="1")
    torch.testing.assert_close(flipped.score(batch), 1 - usual.score(batch), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_judge_that_likes_a_place_best_cannot_tell(
    folder: Path, batch: RewardBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = ready(folder)
    monkeypatch.setattr(reward, "_first_wins", lambda shown, prompts: torch.ones(len(shown)))
    assert reward.score(batch).tolist() == [0.5] * 6


@pytest.mark.slow
def test_questions_at_once_change_nothing(folder: Path, batch: RewardBatch) -> None:
    one, many = (ready(folder, soft=True, questions_at_once=count).score(batch) for count in (1, 100))
    torch.testing.assert_close(one, many, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_controls_and_images_alone_have_one_half(folder: Path, batch: RewardBatch) -> None:
    alone = torch.tensor([True, True, False, False, False, False])
    found = ready(folder, soft=True).score(replace(batch, is_control=alone))
    assert found[:3].tolist() == [0.5] * 3
    torch.testing.assert_close(found[3:], ready(folder, soft=True).score(batch)[3:], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", list(BUILDERS))
def test_each_family_sees_both_images_in_their_order(family: str) -> None:
    vlm = load_vlm(str(twin(family)), CPU)
    tokens = [vlm.token("red"), vlm.token("blue")]
    first, second = to_pil(torch.rand(2, 3, 32, 40, generator=torch.Generator().manual_seed(0)))
    shown, questions = [[first, second], [second, first]], ["which?", "which one of both, please?"]
    together = vlm.log_probs(shown, questions, tokens)
    alone = [vlm.log_probs([pair], [text], tokens) for pair, text in zip(shown, questions, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)
    swapped = vlm.log_probs(shown[::-1], questions, tokens)
    assert (together - swapped).abs().max() > 1e-4


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"question must hold \{prompt\}"):
        PairwiseJudge(question="Which is better?")
    with pytest.raises(ValueError, match="first and second must differ"):
        PairwiseJudge(first="2")
    with pytest.raises(ValueError, match="questions_at_once must be at least 1"):
        PairwiseJudge(questions_at_once=0)
    with pytest.raises(ValueError, match="questions_at_once must be at least 1 and at most"):
        PairwiseJudge(questions_at_once=10**18)


@pytest.mark.slow
def test_an_answer_of_several_tokens_is_the_users_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"'Maybe' must be one token, got \d with this model's tokenizer"):
        ready(folder, second="Maybe")
