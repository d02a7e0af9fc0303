"""cached: who is asked, and who is not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Outputs
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch
from tests.rewards.inner import WRITTEN, numbers, said, wrapped

EXAMPLE = Example(random_batch=numbers, best=lambda: said("1"), settings={"reward": WRITTEN})


def test_a_sample_is_asked_about_once_within_a_batch_and_later() -> None:
    reward = wrapped("cached")
    assert reward.score(said("0.1", "0.2", "0.1")).tolist() == pytest.approx([0.1, 0.2, 0.1])
    assert reward.score(said("0.3", "0.2")).tolist() == pytest.approx([0.3, 0.2])
    assert sorted(reward.reward.scored) == ["0.1", "0.2", "0.3"]


def test_prompts_targets_and_further_outputs_tell_samples_apart() -> None:
    reward = wrapped("cached")
    batch = said("0.5")
    prompt = batch.prompts[0]
    for other in (replace(prompt, text="Other?"), replace(prompt, target={"a": 1}), replace(prompt, target={"a": "1"})):
        reward.score(replace(batch, prompts=(other,)))
    reward.score(replace(batch, outputs=replace(batch.outputs, num_tokens=torch.tensor([3]))))
    reward.score(replace(batch, iteration=4, seeds=(99,)))
    assert len(reward.reward.scored) == 5


@in_one_test("make", [torch.tensor, np.array, lambda rows: np.array(rows, dtype=object), list])
def test_targets_are_told_apart_by_every_number_of_a_large_array(make: Any) -> None:
    reward, batch = wrapped("cached"), said("0.5")
    for place in (999, 1000, 999):
        rows = [float(number == place) for number in range(2000)]
        prompt = replace(batch.prompts[0], target={"mask": {"rows": [make(rows)]}})
        reward.score(replace(batch, prompts=(prompt,)))
    assert len(reward.reward.scored) == 2


def test_images_are_told_apart_by_their_pixels() -> None:
    reward = wrapped("cached", reward={"name": "jpeg_size"})
    images = torch.rand(2, 3, 40, 48, generator=torch.Generator().manual_seed(0))
    batch = make_batch(Outputs(images=images), ["same"] * 2)
    first = reward.score(batch)
    assert first[0] != first[1] and torch.equal(first, reward.score(batch))
    assert torch.equal(first, reward.reward.score(batch))


def test_the_oldest_are_forgotten_first() -> None:
    reward = wrapped("cached", size=2)
    for text in ("0.1", "0.2", "0.1", "0.3", "0.1", "0.2"):
        reward.score(said(text))
    assert reward.reward.scored == ["0.1", "0.2", "0.3", "0.2"]


def test_rewards_that_change_or_compare_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="changes from call to call; put cached inside of it"):
        wrapped("cached", reward={"name": "clip_range", "reward": {"name": "dithered", "reward": WRITTEN}})
    with pytest.raises(ConfigError, match="must judge samples"):
        wrapped("cached", reward={"name": "trusted", "reward": WRITTEN, "accuracy": WRITTEN})
    with pytest.raises(ConfigError, match="size must be at least 1"):
        wrapped("cached", size=0)


def test_a_failure_is_asked_about_again() -> None:
    reward = wrapped("cached")
    for _ in range(2):
        assert reward.score(said("nan", "0.5")).isnan().tolist() == [True, False]
    assert sorted(reward.reward.scored) == ["0.5", "nan", "nan"]


def random_score(seed: int, iteration: int = 0) -> float:
    return float(seed + iteration)


def steady(text: str) -> float:
    return float(text)


def test_a_function_that_looks_at_the_seed_or_the_iteration_is_not_cached() -> None:
    here = "tests.rewards.wrappers.test_cached"
    wrapped("cached", reward={"name": "python", "function": f"{here}:steady"})
    with pytest.raises(ConfigError, match="changes from call to call"):
        wrapped("cached", reward={"name": "python", "function": f"{here}:random_score"})
