"""Scores by an adapter on the policy's base: as the policy computed them; the numbers are tested with the policy."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.reward_batches import check_needs, select
from mmrl.rewards.models.adapter_score import AdapterScore
from tests.rewards.example import Example, answers


def batch_of(scores: list[float], adapter: str = "lab/reward") -> RewardBatch:
    return replace(answers(["an answer"] * len(scores)), adapter_scores={adapter: torch.tensor(scores)})


def random_batch(given: random.Random) -> RewardBatch:
    return batch_of([given.gauss(0, 3) for _ in range(12)])


EXAMPLE = Example(settings={"adapter": "lab/reward"}, random_batch=random_batch)  # no truth: a model's opinion


def test_it_is_what_the_named_adapter_gave_and_follows_the_rows() -> None:
    batch = replace(batch_of([1.0, -2.0, 3.0]), adapter_scores={"a": torch.ones(3), "b.c/d": torch.arange(3.0)})
    reward = AdapterScore(adapter="b.c/d")
    assert reward.needs == {"texts", "adapter.b.c/d"}
    assert reward.score(batch).tolist() == [0, 1, 2]
    assert reward.score(select(batch, torch.tensor([2, 0]))).tolist() == [2, 0]


def test_outside_of_training_and_without_a_name_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs adapter\.x: it judges the answers of a policy in training alone"):
        check_needs("r", AdapterScore(adapter="x"), batch_of([1.0]))
    with pytest.raises(ValueError, match="adapter must be a folder or a hub name"):
        AdapterScore(adapter="")
    assert AdapterScore(adapter="x").tiny(0, tmp_path).needs == {"texts", f"adapter.{tmp_path}"}
