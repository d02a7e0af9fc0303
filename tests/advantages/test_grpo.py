"""Group-relative advantages against numbers by hand and numpy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo, Std
from mmrl.core.data import Scores
from tests.parameters import in_one_test

STDS: tuple[Std, ...] = ("group", "batch", "centred_batch", "none")
GROUP = [9, 2, 9, 2, 9, 5]
REWARD = [1.0, 10.0, 2.0, 14.0, 6.0, 100.0]  # means 3, 12, and one alone


def _scores(reward: list[float] | Tensor, group: list[int], invalid: tuple[int, ...] = ()) -> Scores:
    size = len(group)
    valid = torch.tensor([n not in invalid for n in range(size)])
    numbers = torch.arange(size)
    values = torch.as_tensor(reward, dtype=torch.float32)[:, None]
    return Scores(values, ("r",), (1.0,), valid, torch.tensor(group), numbers, numbers)


def test_group_std_by_hand() -> None:
    """Centred -2, -1, 3 with population std sqrt(14/3); -2, 2 with std 2."""
    s = math.sqrt(14 / 3) + 1e-4
    got = Grpo()(_scores(REWARD, GROUP))
    assert_close(got, torch.tensor([-2 / s, -2 / 2.0001, -1 / s, 2 / 2.0001, 3 / s, 0]))


def test_unbiased_group_std_by_hand() -> None:
    s, t = math.sqrt(14 / 2), math.sqrt(8)
    got = Grpo(is_unbiased=True, epsilon=0.0)(_scores(REWARD, GROUP))
    assert_close(got, torch.tensor([-2 / s, -2 / t, -1 / s, 2 / t, 3 / s, 0]))


def test_batch_std_is_that_of_all_rewards() -> None:
    std = float(np.std(REWARD)) + 1e-4
    assert_close(Grpo(std="batch")(_scores(REWARD, GROUP)), torch.tensor([-2, -2, -1, 2, 3, 0]) / std)


def test_centred_batch_std_is_the_root_mean_square_of_the_centred_rewards() -> None:
    std = math.sqrt((4 + 4 + 1 + 4 + 9 + 0) / 6) + 1e-4
    assert_close(Grpo(std="centred_batch")(_scores(REWARD, GROUP)), torch.tensor([-2, -2, -1, 2, 3, 0]) / std)


def test_without_a_std_the_rewards_are_only_centred() -> None:
    assert_close(Grpo(std="none")(_scores(REWARD, GROUP)), torch.tensor([-2.0, -2, -1, 2, 3, 0]))


def test_clip_bounds_both_sides() -> None:
    assert_close(Grpo(std="none", clip=1.5)(_scores(REWARD, GROUP)), torch.tensor([-1.5, -1.5, -1, 1.5, 1.5, 0]))
    assert Grpo(std="none")(_scores([0.0, 100.0], [0, 0])).tolist() == [-5, 5]
    assert Grpo(std="none", clip=None)(_scores([0.0, 100.0], [0, 0])).tolist() == [-50, 50]


def test_min_std_silences_groups_of_little_spread_only() -> None:
    """Stds 0.01 and 2: noise of a reward model against a real difference (Pref-GRPO's illusory advantage)."""
    scores = _scores([0.50, 0.52, 1.0, 5.0], [0, 0, 1, 1])
    got = Grpo(min_std=0.05, epsilon=0.0)(scores)
    assert_close(got, torch.tensor([0.0, 0, -1, 1]))
    assert_close(Grpo(epsilon=0.0)(scores), torch.tensor([-1.0, 1, -1, 1]), rtol=1e-4, atol=0)


def test_copying_every_sample_changes_no_advantage_but_by_the_unbiased_factor() -> None:
    """The population std of a doubled group is the same; the unbiased one is sqrt(2 (n - 1) / (2 n - 1)) of it."""
    reward, group, n = [1.0, 4.0, 7.0], [0, 0, 0], 3
    for is_unbiased, factor in ((False, 1.0), (True, math.sqrt((2 * n - 1) / (2 * (n - 1))))):
        advantage = Grpo(is_unbiased=is_unbiased, epsilon=0.0)
        once, twice = advantage(_scores(reward, group)), advantage(_scores(reward * 2, group * 2))
        assert_close(twice, torch.cat([once, once]) * factor)


@in_one_test("std", STDS)
def test_invalid_samples_get_zero_and_change_nothing_for_the_others(std: Std) -> None:
    clean = Grpo(std=std)(_scores([1.0, 4.0, 6.0, 7.0], [0, 0, 1, 1]))
    for wrong in (math.nan, 1e9):
        got = Grpo(std=std)(_scores([1.0, wrong, 4.0, 6.0, wrong, 7.0], [0, 0, 0, 1, 1, 1], invalid=(1, 4)))
        assert got[[1, 4]].tolist() == [0, 0]
        assert got[[0, 2, 3, 5]].tolist() == clean.tolist()


@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("epsilon", [0.0, 1e-4])
def test_equal_rewards_give_exactly_zero(std: Std, epsilon: float) -> None:
    """0.1 has no exact float: a mean that is one bit off would be divided by itself."""
    for size in (3, 7, 24):
        assert (Grpo(std=std, epsilon=epsilon)(_scores([0.1] * size, [0] * size)) == 0).all()


@in_one_test("std", STDS)
def test_one_valid_member_gets_zero(std: Std) -> None:
    assert Grpo(std=std)(_scores([3.0, 8.0, math.nan], [0, 1, 1], invalid=(2,))).tolist() == [0, 0, 0]


@in_one_test("std", STDS)
def test_the_mean_of_each_group_is_zero(std: Std) -> None:
    got = Grpo(std=std, clip=None)(_scores(REWARD, GROUP))
    for group in set(GROUP):
        members = [n for n, g in enumerate(GROUP) if g == group]
        assert got[members].mean().item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("std", ["group", "batch", "centred_batch"])
def test_rewards_may_be_shifted_and_stretched(std: Std) -> None:
    advantage = Grpo(std=std, epsilon=0.0)
    stretched = [3 * reward - 7 for reward in REWARD]
    assert_close(advantage(_scores(stretched, GROUP)), advantage(_scores(REWARD, GROUP)))


def test_batch_std_is_one_for_all_groups_and_group_std_is_not() -> None:
    """Group 1 is group 0 times ten: with one std its advantages are ten times larger, with its own the same."""
    scores = _scores([1.0, 2.0, 6.0, 10.0, 20.0, 60.0], [0, 0, 0, 1, 1, 1])
    one, own = Grpo(std="batch")(scores), Grpo(epsilon=0.0)(scores)
    assert_close(one[3:], 10 * one[:3])
    assert_close(own[3:], own[:3])


@in_one_test(
    ("settings", "message"),
    [
        ({"std": "global"}, "std must be one of group, batch, centred_batch, none, got 'global'"),
        ({"std": "batch", "is_unbiased": True}, "is_unbiased is for std 'group' only"),
        ({"epsilon": -1.0}, "epsilon must be at least 0, got -1.0"),
        ({"min_std": -1.0}, "min_std must be at least 0"),
        ({"clip": 0.0}, "clip must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grpo(**settings)
