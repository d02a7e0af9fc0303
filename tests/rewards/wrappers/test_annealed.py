"""annealed by hand."""

from dataclasses import replace

import pytest

from mmrl.core.contracts import ConfigError
from tests.rewards.example import Example
from tests.rewards.inner import SECOND, WRITTEN, numbers, said, wrapped

# at the end of the schedule, where the strict reward alone is left
EXAMPLE = Example(
    random_batch=lambda source: replace(numbers(source), iteration=5),
    best=lambda: replace(said("0 1", "1 1"), iteration=5),
    settings={"reward": WRITTEN, "then": SECOND, "last": 5},
)


def test_one_reward_gives_way_to_the_other() -> None:
    reward = wrapped("annealed", then=SECOND, first=2, last=6)
    batch = said("1 0", "0.5 1")
    found = [reward.score(replace(batch, iteration=n)).tolist() for n in (0, 2, 3, 6, 9)]
    assert found == [[1, 0.5], [1, 0.5], [0.75, 0.625], [0, 1], [0, 1]]


def test_without_a_second_one_it_fades() -> None:
    reward = wrapped("annealed", last=4, shape="step")
    assert [reward.score(replace(said("0.5"), iteration=n)).item() for n in (0, 3, 4)] == [0.5, 0.5, 0]


def test_a_reward_without_a_share_is_not_asked() -> None:
    reward = wrapped("annealed", then=SECOND, last=4)
    reward.score(said("1 0"))
    reward.score(replace(said("0 1"), iteration=4))
    assert reward.reward.scored == ["1 0"] and reward.then.scored == ["0 1"]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 <= first < last, got first 0 and last 0"):
        wrapped("annealed", last=0)
    with pytest.raises(ConfigError, match="both must judge the same, got sample and group"):
        wrapped("annealed", last=3, then={"name": "trusted", "reward": WRITTEN, "accuracy": WRITTEN})
