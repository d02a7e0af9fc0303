"""clip_range by hand."""

import pytest

from mmrl.core.contracts import ConfigError
from tests.rewards.example import Example
from tests.rewards.inner import WRITTEN, numbers, said, wrapped

EXAMPLE = Example(
    random_batch=numbers, best=lambda: said("1", "0.9"), settings={"reward": WRITTEN, "low": 0.2, "high": 0.8}
)


def test_scores_are_cut_at_both_ends() -> None:
    reward = wrapped("clip_range", low=0.25, high=0.5)
    assert reward.score(said("0", "0.25", "0.4", "0.5", "1")).tolist() == pytest.approx([0.25, 0.25, 0.4, 0.5, 0.5])
    assert reward.range == (0.25, 0.5) and reward.needs == {"texts"}
    assert wrapped("clip_range", low=-3, high=0.5).range == (0.0, 0.5)


def test_ends_that_leave_a_constant_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"low must be below high, both finite, got 1\.0 and 1\.0"):
        wrapped("clip_range", low=1.0)
    with pytest.raises(ConfigError, match="runs from 0 to 1: cut to 2 to 3 it is constant"):
        wrapped("clip_range", low=2, high=3)
