"""group_gate against means by hand."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError
from tests.rewards.example import Example
from tests.rewards.inner import SECOND, WRITTEN, Written, numbers, said, wrapped

EXAMPLE = Example(
    random_batch=numbers, best=lambda: said(*["1 1"] * 4), settings={"reward": WRITTEN, "accuracy": SECOND}
)


def gate(**settings: Any) -> Any:
    return wrapped("group_gate", accuracy=SECOND, **settings)


def test_by_default_it_counts_where_all_answers_are_right() -> None:
    # groups of four: all right, three of four right
    batch = said("0.2 1", "0.9 1", "0.4 1", "0.5 1", "0.8 1", "0.1 1", "0.6 1", "0.3 0")
    assert gate().score(batch).tolist() == pytest.approx([0.2, 0.9, 0.4, 0.5, 0, 0, 0, 0])


def test_a_window_of_means_with_both_ends_and_another_score_elsewhere() -> None:
    texts = ["0.1 0", "0.2 0.3", "0.3 0.2", "0.4 0.3"]  # a mean of 0.2
    texts += ["0.5 0.6", "0.6 0.6", "0.7 0.7", "0.8 0.5"]  # of 0.6, in float32 a little more or less
    texts += ["0.9 0", "0.8 0", "0.7 0.7", "0.6 0"]  # of 0.175
    texts += ["0.5 1", "0.4 1", "0.3 0.5", "0.2 0"]  # of 0.625
    found = gate(low=0.2, high=0.6, otherwise=-0.5).score(said(*texts))
    assert found.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, *[-0.5] * 8])


def test_the_inner_reward_sees_open_groups_only() -> None:
    reward = gate()
    reward.score(said("0.2 1", "0.9 1", "0.4 1", "0.5 1", "0.8 1", "0.1 1", "0.6 1", "0.3 0"))
    inner = reward.reward
    assert isinstance(inner, Written)
    assert inner.scored == ["0.2 1", "0.9 1", "0.4 1", "0.5 1"]


def test_a_reward_of_groups_sees_whole_ones() -> None:
    length = {"name": "length_penalised", "reward": SECOND, "kind": "kimi", "penalty": 1.0}
    batch = said(*["0 1"] * 4, "0 1", "0 0", "0 1", "0 1")
    assert batch.outputs.texts is not None
    lengths = torch.tensor([10, 20, 30, 20] * 2)
    batch = replace(batch, outputs=replace(batch.outputs, num_tokens=lengths))
    # l = 1/2 - (n - 10) / 20 in the first group; the second has a wrong answer
    assert gate(reward=length).score(batch).tolist() == pytest.approx([1.5, 1, 0.5, 1, 0, 0, 0, 0])
    assert gate(reward=length).range == (-0.5, 1.5) and "num_tokens" in gate(reward=length).needs


def test_controls_are_in_no_mean() -> None:
    batch = said("0.2 1", "0.9 0", "0.4 1", "0.5 1")
    assert gate().score(batch).tolist() == [0, 0, 0, 0]
    batch = replace(batch, is_control=torch.tensor([False, True, False, False]))
    assert gate().score(batch).tolist() == pytest.approx([0.2, 0.9, 0.4, 0.5])
    everyone = replace(batch, is_control=torch.ones(4, dtype=torch.bool))
    assert gate(low=0).score(everyone).tolist() == [0, 0, 0, 0], "no sample counts"


def test_what_cannot_be_judged_is_in_no_mean_and_stays_so() -> None:
    found = gate().score(said("0.2 1", "0.6 nan", "nan 1", "0.5 1"))
    assert found[[0, 3]].tolist() == pytest.approx([0.2, 0.5])
    assert found[1:3].isnan().all()


def test_it_is_a_plain_loop_over_groups() -> None:
    source = random.Random(0)
    for _ in range(20):
        batch = numbers(source)
        assert batch.outputs.texts is not None
        pairs = [tuple(map(float, text.split())) for text in batch.outputs.texts]
        expected = []
        for row, (value, _) in enumerate(pairs):
            own = [pairs[other][1] for other in range(len(pairs)) if batch.group[other] == batch.group[row]]
            expected.append(value if 0.3 <= sum(own) / len(own) <= 0.8 else 0.0)
        assert gate(low=0.3, high=0.8).score(batch).tolist() == pytest.approx(expected)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"low must be at most high, got 0.8 and 0.5"):
        gate(low=0.8, high=0.5)
    with pytest.raises(ConfigError, match=r"high: should be a finite number, got inf"):
        gate(high=float("inf"))
    with pytest.raises(ConfigError, match="the accuracy must judge samples, got one that judges groups"):
        wrapped("group_gate", accuracy={"name": "group_gate", "reward": WRITTEN, "accuracy": SECOND})
    with pytest.raises(ConfigError, match="the inner reward must judge samples, got one that judges turns"):
        gate(reward={"name": "step_reward"})
