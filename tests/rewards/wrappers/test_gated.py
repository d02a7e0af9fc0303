"""gated by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.contracts import ConfigError
from mmrl.parsing.actions.action import Action
from tests.rewards.example import Example
from tests.rewards.inner import SECOND, WRITTEN, numbers, said, wrapped

EXAMPLE = Example(random_batch=numbers, best=lambda: said("1 1", "1 0.5"), settings={"reward": WRITTEN, "gate": SECOND})


def test_a_reward_counts_where_the_gate_is_open_and_is_not_asked_elsewhere() -> None:
    reward = wrapped("gated", gate=SECOND, threshold=0.5, otherwise=-1)
    assert reward.score(said("0.2 0.5", "0.9 0.4", "0.7 1")).tolist() == pytest.approx([0.2, -1, 0.7])
    assert reward.reward.scored == ["0.2 0.5", "0.7 1"]
    assert reward.range == (-1.0, 1.0)
    assert reward.score(said("1 0", "1 0.1")).tolist() == [-1, -1]


def test_a_reward_of_groups_sees_the_whole_group() -> None:
    inner = {"name": "trusted", "reward": WRITTEN, "accuracy": SECOND}
    reward = wrapped("gated", reward=inner, gate=SECOND)
    batch = said("0.2 1", "0.8 0", "0.5 1", "0.5 0")
    whole = reward.reward.score(batch)
    assert reward.granularity == "group"
    assert reward.score(batch).tolist() == [whole[0], 0, whole[2], 0]


def test_a_gate_of_groups_is_refused() -> None:
    with pytest.raises(ConfigError, match="gate must judge samples, got one that judges groups"):
        wrapped("gated", gate={"name": "trusted", "reward": WRITTEN, "accuracy": WRITTEN})
    with pytest.raises(ConfigError, match="threshold"):
        wrapped("gated", gate=SECOND, threshold=float("inf"))


@pytest.mark.parametrize("inner", [WRITTEN, {"name": "trusted", "reward": WRITTEN, "accuracy": WRITTEN}])
def test_a_gate_that_cannot_judge_is_neither_open_nor_shut(inner: dict[str, object]) -> None:
    found = wrapped("gated", reward=inner, gate=SECOND, otherwise=-1).score(said("0.2 nan", "0.9 0", "0.9 1"))
    assert math.isnan(found[0]) and found[1:].tolist() == pytest.approx([-1, 0.9])


def test_a_turn_without_an_action_can_shut_the_gate() -> None:
    """Step-GRPO of WebGen-Agent pays -1 for a malformed answer, whatever the screen shows."""
    gate = {"name": "invalid_action"}
    reward = wrapped("gated", reward=WRITTEN, gate=gate, threshold=-0.5, otherwise=-0.2)
    batch = said("0.2", "0.9", "0.4")
    actions = (None, Action("finish"), None)
    assert reward.needs == {"texts", "actions"} and reward.granularity == "sample"
    found = reward.score(replace(batch, outputs=replace(batch.outputs, actions=actions)))
    assert_close(found, torch.tensor([-0.2, 0.9, -0.2]))
