"""Quasi-norms by hand, and the advantages of flat groups."""

import math
from typing import Any, cast

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.dr_grpo import DrGrpo
from mmrl.advantages.granular import Granular
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.quasi_norm import QuasiNorm
from mmrl.core.data import Scores


def scores(rewards: list[float], group: list[int], valid: list[bool] | None = None) -> Scores:
    numbers = torch.arange(len(group))
    judged = torch.tensor(valid or [True] * len(group))
    values = torch.tensor(rewards)[:, None]
    return Scores(values, ("r",), (1.0,), judged, torch.tensor(group), numbers, torch.zeros_like(numbers))


def test_a_group_by_hand() -> None:
    """p = 1/2 of 3, -1, -2: (sqrt 3 + 1 + sqrt 2)^2."""
    norm = (math.sqrt(3) + 1 + math.sqrt(2)) ** 2
    got = QuasiNorm(p=0.5, inner=DrGrpo())(scores([5.0, 1.0, 0.0], [4, 4, 4]))
    assert_close(got, torch.tensor([3.0, -1.0, -2.0]) / norm)


def test_against_a_slow_loop_over_groups_with_a_sample_that_was_not_judged() -> None:
    rewards, group = [0.3, 2.0, 0.9, -1.0, 0.4, 7.0, 0.1], [1, 8, 1, 8, 1, 8, 8]
    valid = [True, True, True, True, True, False, True]
    got = QuasiNorm()(scores(rewards, group, valid))
    for name in (1, 8):
        rows = [row for row in range(7) if group[row] == name and valid[row]]
        mean = sum(rewards[row] for row in rows) / len(rows)
        norm = sum(abs(rewards[row] - mean) ** 0.8 for row in rows) ** (1 / 0.8)
        for row in rows:
            assert float(got[row]) == pytest.approx((rewards[row] - mean) / norm, rel=1e-4)
    assert got[5] == 0


def test_at_two_it_is_grpo_over_the_root_of_the_groups_size() -> None:
    """R-quasi_norm."""
    given = scores([0.3, 2.0, 0.9, -1.0, 0.4, 7.0, 0.1], [1, 8, 1, 8, 1, 8, 8])
    size = torch.tensor([3, 4, 3, 4, 3, 4, 4])
    assert_close(QuasiNorm(p=2.0)(given), Grpo(epsilon=0.0)(given) / size.sqrt())


def test_the_scale_of_rewards_and_of_the_inner_advantages_is_of_no_account() -> None:
    rewards, group = [0.3, 2.0, 0.9, -1.0], [1, 1, 1, 1]
    plain = QuasiNorm(inner=Grpo(epsilon=0.0))(scores(rewards, group))
    assert_close(plain, QuasiNorm(inner=DrGrpo())(scores(rewards, group)))
    assert_close(plain, QuasiNorm(inner=DrGrpo())(scores([10 * reward for reward in rewards], group)))


@pytest.mark.parametrize("p", [0.3, 0.8, 1.0])
def test_flat_groups_get_less_than_those_in_which_few_stand_out(p: float) -> None:
    """All as far from the mean: n^(1/2 - 1/p) of the length that each group has at p = 2."""
    flat, peaked = scores([1.0, -1.0, 1.0, -1.0], [1] * 4), scores([8.0, 0.0, 0.0, -8.0], [1] * 4)
    lengths = [float(QuasiNorm(p=p, inner=DrGrpo())(given).norm()) for given in (flat, peaked)]
    assert lengths[0] == pytest.approx(4 ** (0.5 - 1 / p))
    assert lengths[1] == pytest.approx(2 ** (0.5 - 1 / p))


def test_equal_rewards_teach_nothing() -> None:
    assert (QuasiNorm()(scores([0.1] * 3, [1] * 3)) == 0).all()


@pytest.mark.parametrize("p", [0.0, 2.1])
def test_a_p_out_of_range_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"p must be above 0 and at most 2, got {p}"):
        QuasiNorm(p=p)


def test_an_advantage_of_decisions_is_refused() -> None:
    with pytest.raises(ValueError, match="inner must give one number for each sample"):
        QuasiNorm(inner=cast(Any, Granular()))
