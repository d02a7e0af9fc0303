"""dithered: mean, spread and repeatability of the noise."""

import random
from dataclasses import replace

import pytest
import torch

from mmrl.core.contracts import ConfigError, RewardBatch
from tests.rewards.example import Example
from tests.rewards.inner import WRITTEN, numbers, said, wrapped

EXAMPLE = Example(
    random_batch=numbers, settings={"reward": WRITTEN, "noise": "uniform", "std": 0.01}
)  # no best: noise may lift any score


def many(seeds: range) -> RewardBatch:
    return replace(said(*["0.5"] * len(seeds)), seeds=tuple(seeds))


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["gaussian", "uniform"])
def test_the_noise_has_mean_0_and_the_std_that_is_set(noise: str) -> None:
    scores = wrapped("dithered", noise=noise, std=0.2).score(many(range(4000)))
    # four standard errors: 0.2 / sqrt(4000) * 4, and of a std at most 0.2 / sqrt(8000) * 4
    assert float(scores.mean()) == pytest.approx(0.5, abs=0.013)
    assert float(scores.std()) == pytest.approx(0.2, abs=0.009)
    inside = (scores - 0.5).abs() <= 3**0.5 * 0.2
    assert inside.all() if noise == "uniform" else not inside.all()


def test_a_sample_has_its_own_noise_wherever_it_stands() -> None:
    reward = wrapped("dithered")
    assert torch.equal(reward.score(many(range(3, 9))), reward.score(many(range(10)))[3:9])
    assert len(set(reward.score(many(range(10))).tolist())) == 10


def test_the_range_follows_the_noise() -> None:
    assert wrapped("dithered").range == (float("-inf"), float("inf"))
    low, high = wrapped("dithered", noise="uniform", std=0.1).range
    assert (low, high) == pytest.approx((-0.17320508, 1.17320508))
    with pytest.raises(ConfigError, match="std must be above 0, got 0"):
        wrapped("dithered", std=0.0)


def test_the_inner_reward_is_the_middle(source: random.Random | None = None) -> None:
    batch = numbers(random.Random(3))
    plain = wrapped("dithered").reward.score(batch)
    near = wrapped("dithered", noise="uniform", std=0.001).score(batch)
    assert (near - plain).abs().max() <= 0.0018
