"""preference_head: its pairs, its loss, and what it learns."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs, Scores
from mmrl.core.plugins import build
from mmrl.training.checkpoint import with_tensors, without_tensors
from tests.rewards.example import GROUP, Example, make_batch
from tests.rewards.inner import WRITTEN, wrapped
from tests.rewards.pictures import CPU, random_images


def random_batch(rng: random.Random) -> RewardBatch:
    """Random images, with an inner score in the text."""
    texts = tuple(str(rng.random()) for _ in range(2 * GROUP))
    return make_batch(Outputs(images=random_images(rng, 2 * GROUP), texts=texts), ["a red circle"] * 2 * GROUP)


# no truth: until it is ready the scores are those of the inner reward, then a network's
EXAMPLE = Example(random_batch=random_batch, settings={"reward": WRITTEN})


def scores_of(examples: Tensor, group: list[int], is_control: list[bool] | None = None) -> Scores:
    number = torch.arange(len(group))
    control = torch.tensor(is_control or [False] * len(group))
    return Scores(
        *(torch.zeros(len(group), 1), ("r",), (1.0,), ~control, torch.tensor(group), number, number * 0),
        is_control=control,
        examples={"r": examples},
    )


def test_pairs_are_a_cycle_through_each_group_without_ties_controls_and_failures() -> None:
    reward = wrapped("preference_head")
    # feature, score: group 1 has 0.1, 0.5, 0.9; group 2 a tie; group 3 one control and one that failed
    rows = [[1, 0.1], [2, 0.5], [3, 0.9], [4, 0.3], [5, 0.3], [6, 0.1], [7, 0.9], [8, math.nan]]
    is_control = [False] * 5 + [True, False, False]
    pairs = reward.examples_of(scores_of(torch.tensor(rows), [1, 1, 1, 2, 2, 3, 3, 3], is_control))
    assert sorted(map(tuple, pairs.tolist())) == [(2.0, 1.0), (3.0, 1.0), (3.0, 2.0)]
    assert reward.examples_of(scores_of(torch.zeros(3, 0), [1, 1, 1])).shape == (0, 0)


def test_the_loss_is_that_of_bradley_and_terry() -> None:
    class First(nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            return features[:, 0]

    examples = torch.tensor([[0.7, 9.0, 0.2, 9.0], [-0.4, 9.0, 0.5, 9.0]])
    expected = sum(math.log(1 + math.exp(-(winner - loser))) for winner, loser in ((0.7, 0.2), (-0.4, 0.5))) / 2
    assert float(wrapped("preference_head").fit_loss(First(), examples)) == pytest.approx(expected, abs=1e-6)


def with_features(reward: Any, features: Tensor) -> Any:
    reward.features_of = lambda batch: features
    return reward


def test_it_learns_who_wins_and_then_asks_less_often() -> None:
    reward = wrapped("preference_head", warm_up=4, every=4)
    source, direction = torch.Generator().manual_seed(0), torch.tensor([0.6, -0.8, 0.0])
    asked, number = [], torch.arange(8 * GROUP)
    for _ in range(9):
        features = torch.randn(8 * GROUP, 3, generator=source)
        texts = tuple(str(float(one @ direction)) for one in features)
        batch = make_batch(Outputs(texts=texts), [""] * len(texts))
        before = len(reward.reward.scored)
        values, examples = with_features(reward, features).score_with_examples(batch)
        asked.append(len(reward.reward.scored) > before)
        reward.update(
            Scores(
                values[:, None], ("r",), (1.0,), number >= 0, batch.group, number, number * 0, examples={"r": examples}
            )
        )
    assert asked == [True] * 5 + [False] * 3 + [True]
    truth = torch.tensor([float(text) for text in texts])
    assert float(torch.corrcoef(torch.stack([values, truth]))[0, 1]) > 0.9
    assert (values.abs() < 1).all()


@pytest.mark.slow
def test_features_are_those_of_clip_and_their_product(tmp_path: Path) -> None:
    reward = build("rewards", {"name": "preference_head", "reward": WRITTEN}).tiny(0, tmp_path)
    reward.prepare(CPU)
    batch = random_batch(random.Random(0))
    images, texts = reward._clip.images(batch.outputs.images), reward._clip.texts(["a red circle"] * 2 * GROUP)
    size = images.shape[1]
    expected = [[*(math.sqrt(size) * i), *(math.sqrt(size) * i * t)] for i, t in zip(images, texts, strict=True)]
    assert_close(reward.features_of(batch), torch.tensor(expected))


def test_a_restored_one_goes_on_bit_for_bit() -> None:
    examples = torch.rand(2 * GROUP, 5, generator=torch.Generator().manual_seed(0))
    scores = scores_of(examples, [0] * GROUP + [1] * GROUP)
    whole, first, second = (wrapped("preference_head", warm_up=1) for _ in range(3))
    for reward in (whole, first):
        reward.update(scores)
    plain, tensors = without_tensors(first.state_dict(), "reward/r")
    second.load_state_dict(with_tensors(json.loads(json.dumps(plain)), tensors))
    for reward in (whole, second):
        reward.update(scores)
    assert torch.equal(whole.predicted(examples[:, :4]), second.predicted(examples[:, :4]))


def test_an_inner_reward_of_turns_is_refused() -> None:
    with pytest.raises(ConfigError, match="must judge samples or groups, got one that judges turns"):
        wrapped("preference_head", reward={"name": "step_reward"})
