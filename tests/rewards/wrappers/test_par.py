"""par against sigmoids by hand: references by scores and by answers."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.core.plugins import build
from mmrl.core.reward_batches import Demands, select
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.inner import WRITTEN, wrapped


def batch_of(texts: list[str], target: dict[str, Any], group_size: int = 4) -> RewardBatch:
    return make_batch(Outputs(texts=tuple(texts)), ["q"] * len(texts), [target] * len(texts), group_size=group_size)


def random_batch(source: random.Random) -> RewardBatch:
    numbers = [0, 1, *(source.random() for _ in range(10))]
    targets = [{"reference_scores": references} for references in (1.0, [0.0], [source.random(), source.random()])]
    texts = [str(one) for one in (0, *numbers[2:5], 1, *numbers[2:5], *numbers[2:6])]
    return make_batch(Outputs(texts=tuple(texts)), ["q"] * 12, [targets[n // 4] for n in range(12)])


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: batch_of(["1"] * 4, {"reference_scores": 0}), settings={"reward": WRITTEN}
)


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_it_is_the_mean_of_the_preferences_over_references() -> None:
    reward = wrapped("par")
    assert reward.score(batch_of(["0.8", "0.1"], {"reference_scores": [0.3, 1.0]})).tolist() == pytest.approx(
        [(sigmoid(0.5) + sigmoid(-0.2)) / 2, (sigmoid(-0.2) + sigmoid(-0.9)) / 2]
    )
    assert reward.score(batch_of(["0.4"], {"reference_scores": 0.4})).tolist() == [0.5]
    assert reward.range == pytest.approx((sigmoid(-1), sigmoid(1)))


def test_a_reward_without_ends_gets_the_range_of_a_probability() -> None:
    reward = build("rewards", {"name": "par", "reward": {"name": "jpeg_size"}})
    assert reward.range == (0.0, 1.0) and "target.reference_scores" in reward.needs and "images" in reward.needs


def test_the_gradient_of_images_is_that_of_the_sigmoid() -> None:
    reward = build("rewards", {"name": "par", "reward": {"name": "flicker"}})
    videos = torch.rand(1, 3, 3, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    batch = make_batch(Outputs(videos=videos), ["q"], [{"reference_scores": [0.25]}])
    value = reward.reward.score(batch)
    (inner,) = torch.autograd.grad(value.sum(), videos)
    (outer,) = torch.autograd.grad(reward.score(batch).sum(), videos)
    chance = sigmoid(value.item() - 0.25)
    torch.testing.assert_close(outer, chance * (1 - chance) * inner)


def test_reference_answers_are_judged_once_for_each_prompt_by_the_same_reward() -> None:
    reward = wrapped("par", references="answers")
    prompts = [
        Prompt("q", target={"reference_answers": ["0.3", "1.0"]}),
        Prompt("r", target={"reference_answers": "0"}),
    ]
    batch = make_batch(Outputs(texts=("0.8", "0.1", "0.5", "0.25")), ["q"] * 4, group_size=2)
    batch = replace(batch, prompts=(prompts[0], prompts[0], prompts[1], prompts[1]))
    expected = [(sigmoid(0.5) + sigmoid(-0.2)) / 2, (sigmoid(-0.2) + sigmoid(-0.9)) / 2, sigmoid(0.5), sigmoid(0.25)]
    assert reward.score(batch).tolist() == pytest.approx(expected)
    assert reward.reward.scored == ["0.8", "0.1", "0.5", "0.25", "0.3", "1.0", "0"]


def test_random_references_do_not_depend_on_which_samples_are_there() -> None:
    noisy = {"name": "dithered", "reward": WRITTEN, "std": 0.1, "noise": "uniform"}
    reward = build("rewards", {"name": "par", "reward": noisy, "references": "answers"})
    batch = batch_of(["0.1", "0.5", "0.5"], {"reference_answers": ["0.3", "0.4"]})
    batch = replace(batch, prompts=batch.prompts[:1] * 3)
    whole = reward.score(batch)
    assert torch.equal(reward.score(select(batch, torch.tensor([2, 0]))), whole[[2, 0]])
    assert whole[1] != whole[2], "samples have noise of their own"


def test_references_that_are_none_are_found_when_the_data_is_loaded() -> None:
    scores, texts = (Demands((("r", wrapped("par", references=kind)),)).fault for kind in ("scores", "answers"))
    assert scores(Prompt("q", target={"reference_scores": 0.5})) is None
    assert texts(Prompt("q", target={"reference_answers": ["0.5", "1"]})) is None
    for bad in ([], "0.5", [True], [float("nan")], [0.5, 1.5], {"a": 1}):
        message = scores(Prompt("q", target={"reference_scores": bad}))
        assert "must be a number or a list of numbers from 0 to 1, the range of the inner reward" in str(message)
    for wrong in ([], [1], 0.5):
        assert "must be a text or a list of texts" in str(texts(Prompt("q", target={"reference_answers": wrong})))
    assert "this prompt is unfit" in str(scores(Prompt("q", target={"reference_scores": 0, "unfit": 1})))


@in_one_test(
    ("settings", "message"),
    [
        ({"reward": {"name": "jpeg_size"}, "references": "answers"}, "for a reward of texts alone, got one that needs"),
        ({"reward": {"name": "episode_success"}}, "the inner reward must judge samples, got one that judges episodes"),
        ({"reward": WRITTEN, "references": "controls"}, "references: should be .scores. or .answers., got .controls."),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("rewards", {"name": "par"} | settings)
