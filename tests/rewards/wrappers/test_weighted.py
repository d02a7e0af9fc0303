"""weighted by hand."""

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.plugins import build
from tests.rewards.example import Example
from tests.rewards.inner import WRITTEN, numbers, said

EXAMPLE = Example(
    random_batch=numbers,
    best=lambda: said("1", "1.0"),
    settings={"rewards": [WRITTEN, WRITTEN], "weights": [0.25, 0.75]},
)


def test_scores_are_the_weighted_sum() -> None:
    reward = build("rewards", {"name": "weighted", "rewards": [WRITTEN, WRITTEN], "weights": [2.0, -0.5]})
    assert reward.score(said("0", "0.5", "1")).tolist() == pytest.approx([0.0, 0.75, 1.5])
    assert reward.range == (-0.5, 2.0) and reward.needs == {"texts"}


def test_each_reward_has_a_weight() -> None:
    with pytest.raises(ConfigError, match=r"weights must be as many as rewards \(2\), at least one, got 1"):
        build("rewards", {"name": "weighted", "rewards": [WRITTEN, WRITTEN], "weights": [2.0]})
