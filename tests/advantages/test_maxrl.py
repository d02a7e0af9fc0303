"""Maximum-likelihood advantages: by hand, and the gradient of the log-likelihood by enumeration."""

import math
from itertools import product

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.dr_grpo import DrGrpo
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.maxrl import Maxrl
from mmrl.system.errors import RunError
from tests.advantages.scored import NAN, scored


def test_it_is_relative_to_the_mean_by_hand() -> None:
    scores = scored([1, 0, 0, 0, 2, 4, NAN], [3, 3, 3, 3, 0, 0, 0])
    assert_close(Maxrl(epsilon=0.0)(scores), torch.tensor([3, -1, -1, -1, -1 / 3, 1 / 3, 0]))


def test_a_group_without_a_success_gets_zero() -> None:
    assert not Maxrl(epsilon=0.0)(scored([0, 0, 0])).any()


def test_times_the_mean_it_is_dr_grpo_and_of_zeros_and_ones_grpo_by_a_factor() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0]
    got, p = Maxrl(epsilon=0.0)(scored(rewards)), 0.4
    assert_close(got * p, DrGrpo()(scored(rewards)))
    assert_close(got, Grpo(epsilon=0.0, clip=None)(scored(rewards)) * math.sqrt((1 - p) / p))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_its_mean_gradient_is_that_of_the_log_likelihood_cut_at_the_group_size(size: int) -> None:
    """A coin of chance p: log p is the sum over k of -(1 - p)^k / k, whose slopes are (1 - p)^(k - 1).

    Over all outcomes of a group of coins; the mean that is taken off leaves the orders below the group's size.
    """
    p, mean = 0.3, 0.0
    for outcome in product([0.0, 1.0], repeat=size):
        chance = math.prod(p if one else 1 - p for one in outcome)
        slopes = [1 / p if one else -1 / (1 - p) for one in outcome]  # of the log-probability
        advantages = Maxrl(epsilon=0.0)(scored(outcome)).tolist()
        mean += chance * sum(a * slope for a, slope in zip(advantages, slopes, strict=True)) / size
    assert mean == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, size)), abs=1e-6)


def test_the_size_of_rewards_does_not_matter() -> None:
    rewards = [0.25, 1.0, 0.5]
    assert_close(Maxrl(epsilon=0.0)(scored([8 * one for one in rewards])), Maxrl(epsilon=0.0)(scored(rewards)))


def test_rewards_below_zero_are_refused() -> None:
    with pytest.raises(RunError, match=r"needs rewards of at least 0, got -0\.5"):
        Maxrl()(scored([1.0, -0.5]))
    Maxrl().check({"a": (0.0, 1.0)}, {"a": 0.5})
    with pytest.raises(ValueError, match="'b' goes down to -1"):
        Maxrl().check({"a": (0.0, 1.0), "b": (-1.0, 1.0)}, {"a": 0.5, "b": 1.0})
    with pytest.raises(ValueError, match=r"a weight of -0\.5"):
        Maxrl().check({"a": (0.0, 1.0)}, {"a": -0.5})
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        Maxrl(epsilon=-1.0)
