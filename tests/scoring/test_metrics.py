"""Metrics of scores, and the groups that teach nothing."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.turn_returns import TurnReturns
from mmrl.core.data import Scores
from mmrl.mixes.advantage_weighted import AdvantageWeighted
from mmrl.mixes.gdpo import Gdpo
from mmrl.mixes.weighted_sum import WeightedSum
from mmrl.scoring.metrics import (
    advantages_of,
    constant_groups,
    degenerate_groups,
    difficulty_weight,
    score_metrics,
    variance_shares,
)
from tests.parameters import in_one_test


def some_scores() -> Scores:
    """Three groups of two; the second reward is watched; the last sample could not be judged by the first."""
    values = torch.tensor([[1.0, 5.0], [3.0, 5.0], [4.0, math.nan], [4.0, 1.0], [6.0, 2.0], [math.nan, 8.0]])
    group = torch.tensor([4, 4, 2, 2, 9, 9])
    none = torch.arange(6)
    return Scores(values, ("fit", "look"), (2.0, 0.0), ~values[:, 0].isnan(), group, episode=none, turn=none)


def test_metrics_by_hand() -> None:
    made = some_scores()
    metrics = score_metrics(made, degenerate_groups(made, Grpo()))
    assert metrics == {
        "reward/mean": pytest.approx(7.2),  # of 2, 6, 8, 8, 12
        "reward/std": pytest.approx(math.sqrt((5.2**2 + 1.2**2 + 2 * 0.8**2 + 4.8**2) / 5)),
        "reward/failed": 1.0,
        "groups/degenerate": pytest.approx(2 / 3),  # 2: equal; 9: one valid member
        "groups/difficulty_weight": pytest.approx(4 / 3),  # 4: totals of 8 and 12; the others have no spread
        "reward/fit/mean": pytest.approx(3.6),
        "reward/fit/std": pytest.approx(math.sqrt((5.2**2 + 1.2**2 + 2 * 0.8**2 + 4.8**2) / 5) / 2),
        "reward/fit/failed": 1.0,
        "reward/fit/constant_groups": pytest.approx(2 / 3),
        "reward/look/mean": pytest.approx(4.2),  # of 5, 5, 1, 2, 8
        "reward/look/std": pytest.approx(math.sqrt((2 * 0.8**2 + 3.2**2 + 2.2**2 + 3.8**2) / 5)),
        "reward/look/failed": 1.0,
        "reward/look/constant_groups": pytest.approx(2 / 3),  # 4: equal; 2: one judged member
    }


def test_the_difficulty_of_right_and_wrong_answers_is_p_times_1_minus_p() -> None:
    """Groups of 4 with 1 right answer, of 2 with 1, of 3 with none; a fourth in the second could not be judged."""
    right = torch.tensor([1.0, 0, 0, 0, 1, 0, math.nan, 0, 0, 0])[:, None]
    group, none = torch.tensor([0] * 4 + [3] * 3 + [5] * 3), torch.arange(10)
    made = Scores(right, ("right",), (1.0,), ~right[:, 0].isnan(), group, episode=none, turn=none * 0)
    assert difficulty_weight(made) == pytest.approx((1 / 4 * 3 / 4 + 1 / 2 * 1 / 2 + 0) / 3)


def test_metrics_of_nothing_have_no_means() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    made = Scores(torch.zeros(0, 1), ("r0",), (1.0,), none.bool(), none, episode=none, turn=none)
    metrics = score_metrics(made, degenerate_groups(made, Grpo()))
    assert metrics == {
        "reward/failed": 0.0,
        "groups/degenerate": 0.0,
        "groups/difficulty_weight": 0.0,
        "reward/r0/failed": 0.0,
        "reward/r0/constant_groups": 0.0,
    }


@in_one_test(
    ("values", "valid", "min_spread", "expected"),
    [
        ([0.1, 0.1, 0.1], [True, True, True], 0.0, True),
        ([0.1, 0.1, 0.1000001], [True, True, True], 0.0, False),
        ([0.0, 0.2, math.nan], [True, True, False], 0.1, True),  # standard deviation 0.1
        ([0.0, 0.2, math.nan], [True, True, False], 0.09, False),
        ([0.0, math.nan, math.nan], [True, False, False], 0.0, True),
        ([math.nan, math.nan, math.nan], [False, False, False], 0.0, True),
    ],
)
def test_degenerate_groups(values: list[float], valid: list[bool], min_spread: float, expected: bool) -> None:
    both = torch.tensor([*values, 1.0, 2.0])
    group = torch.tensor([8, 8, 8, 3, 3])
    is_valid = torch.tensor([*valid, True, True])
    assert constant_groups(both, group, is_valid, min_spread).tolist() == [expected] * 3 + [False] * 2
    none = torch.arange(5)
    made = Scores(both[:, None], ("r",), (1.0,), is_valid, group, episode=none, turn=torch.zeros_like(none))
    assert degenerate_groups(made, Grpo(), None, min_spread).tolist() == [expected] * 3 + [False] * 2


def test_a_group_with_equal_totals_teaches_something_where_its_returns_differ() -> None:
    """Two episodes with one success each: in two turns, and in one, which is worth more as it comes sooner."""
    values = torch.tensor([[0.0], [1.0], [1.0]])
    episode, turn = torch.tensor([0, 0, 2]), torch.tensor([0, 1, 0])
    made = Scores(values, ("r",), (1.0,), torch.ones(3, dtype=torch.bool), torch.zeros(3).long(), episode, turn)
    alike = Scores(values[1:], ("r",), (1.0,), torch.ones(2, dtype=torch.bool), torch.zeros(2).long(), *made_alone())
    assert not degenerate_groups(made, TurnReturns(discount=0.9)).any()
    assert degenerate_groups(alike, TurnReturns(discount=0.9)).all()


def made_alone() -> tuple[torch.Tensor, torch.Tensor]:
    """Two episodes of one turn each."""
    return torch.tensor([0, 1]), torch.tensor([0, 0])


def test_the_reward_of_a_mix_within_groups_is_told_by_the_weighted_sum() -> None:
    made = replace(some_scores(), mix=Gdpo())
    metrics = score_metrics(made, degenerate_groups(made, Grpo()))
    assert float(made.total[made.valid].mean()) == pytest.approx(0, abs=1e-6)
    assert metrics["reward/mean"] == pytest.approx(7.2)


def test_advantages_of_each_reward_alone_are_summed_and_tell_equal_sums_apart() -> None:
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    number = torch.arange(4)
    group = torch.tensor([0, 0, 1, 1])
    plain = Scores(values, ("a", "b"), (2.0, 2.0), torch.ones(4, dtype=torch.bool), group, number, number * 0)
    mixed = Scores(values, ("a", "b"), (3.0, 1.0), plain.valid, group, number, number * 0, mix=AdvantageWeighted())
    one = Grpo(std="none")
    assert degenerate_groups(plain, one).tolist() == [True, True, False, False]
    assert not degenerate_groups(mixed, one).any()
    # 3 * (1 - 1/2) + (0 - 1/2) = 1; in the second group 3 * -1/2 - 1/2 = -2
    assert advantages_of(mixed, one, None).tolist() == [1, -1, -2, 2]
    assert advantages_of(plain, one, None).tolist() == [0, 0, -2, 2]
    assert mixed.total.tolist() == [3, 1, 0, 4]


def shares_by_numpy(values: Any, weights: Any, group: Any, counted: Any) -> Any:
    """The covariance of each part with the total over its variance, group by group."""
    worth = (values * weights)[counted]
    group = group[counted]
    for one in set(group.tolist()):
        worth[group == one] -= worth[group == one].mean(0)
    covariance = np.cov(np.column_stack([worth, worth.sum(1)]).T, bias=True)
    return covariance[:-1, -1] / covariance[-1, -1]


def test_the_shares_of_the_variance_are_those_of_numpy_and_sum_to_one() -> None:
    generator = np.random.default_rng(3)
    values, group = generator.normal(size=(24, 3)) * [1.0, 3.0, 0.2], np.repeat([5, 1, 8, 2], 6)
    values += 40.0 * group[:, None]  # what groups differ by says nothing
    weights, valid = (1.0, -0.5, 2.0), np.arange(24) % 7 != 3
    filled = np.where(valid[:, None], values, math.nan)
    none = torch.arange(24)
    made = Scores(
        torch.tensor(np.column_stack([filled, filled[:, 0]])).float(),
        *(("a", "b", "c", "watched"), (*weights, 0.0)),
        *(torch.tensor(valid), torch.tensor(group)),
        episode=none,
        turn=torch.zeros(24).long(),
    )
    shares = variance_shares(made)
    assert list(shares) == ["a", "b", "c"] and sum(shares.values()) == pytest.approx(1)
    np.testing.assert_allclose(list(shares.values()), shares_by_numpy(values, weights, group, valid), rtol=1e-4)
    assert score_metrics(made, torch.zeros(24).bool())["reward/b/share"] == shares["b"]
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    assert variance_shares(made.select(order)) == pytest.approx(shares)


def test_an_episode_counts_once_in_the_shares() -> None:
    """A group of two episodes, one of them with three turns of the same numbers: the same as two samples."""
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.25]])
    all_of, group = torch.ones(4).bool(), torch.zeros(4).long()
    turns = Scores(
        rows, ("a", "b"), (1.0, 1.0), all_of, group, episode=torch.tensor([0, 0, 0, 1]), turn=torch.arange(4)
    )
    assert variance_shares(turns) == pytest.approx({"a": 4 / 3, "b": -1 / 3})  # of 1, -1/4 and 3/4


def test_no_shares_without_spread_or_with_one_reward_or_another_total() -> None:
    def made(values: list[list[float]], weights: tuple[float, ...] = (1.0, 1.0), mix: Any = None) -> Scores:
        none = torch.arange(len(values))
        zeros = torch.zeros_like(none)
        rows = torch.tensor(values)
        return Scores(rows, ("a", "b"), weights, rows[:, 0] > -9, zeros, episode=none, turn=zeros, mix=mix)

    assert variance_shares(made([[0.1, 0.7]] * 3)) == {}
    assert variance_shares(made([[0.0, 1.0], [1.0, 0.0]])) == {}  # the total is level
    assert variance_shares(made([[0.0, 1.0], [1.0, 1.0]], (1.0, 0.0))) == {}
    assert variance_shares(made([[0.0, 1.0], [1.0, 3.0]], mix=Gdpo())) == {}
    assert variance_shares(made([[0.0, 1.0], [1.0, 3.0]], mix=WeightedSum())) == pytest.approx({"a": 1 / 3, "b": 2 / 3})
