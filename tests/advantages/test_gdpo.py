"""Decoupled advantages against a slow loop, and the mix of the same name."""

import statistics
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.gdpo import Gdpo
from mmrl.advantages.grpo import Grpo
from mmrl.core.data import Scores
from mmrl.mixes.gdpo import Gdpo as Mix
from tests.advantages.scored import NAN, scored

GROUP = [4, 4, 4, 1, 1, 1, 9, 9]
VALUES = torch.tensor([[1.0, 0.1], [0.0, 0.1], [1.0, 0.3], [0.0, 9.0], [0.0, 7.0], [0.0, 2.0], [1.0, 0.5], [1.0, 0.5]])


def _scores(values: torch.Tensor = VALUES, weights: tuple[float, ...] = (1.0, 0.5)) -> Scores:
    return scored([0.0] * len(GROUP), GROUP, values=values, names=("a", "b"), weights=weights)


def test_it_equals_a_slow_loop() -> None:
    sums = [0.0] * len(GROUP)
    for column, weight in enumerate((1.0, 0.5)):
        for row, name in enumerate(GROUP):
            mates = [float(VALUES[other, column]) for other, group in enumerate(GROUP) if group == name]
            if statistics.stdev(mates) > 0:
                own = float(VALUES[row, column]) - statistics.fmean(mates)
                sums[row] += weight * own / (statistics.stdev(mates) + 1e-4)
    std = statistics.pstdev(sums) + 1e-4
    assert_close(Gdpo()(_scores()), torch.tensor([one / std for one in sums]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("is_unbiased", [True, False])
def test_it_is_the_mix_under_grpo_with_the_std_of_the_batch(is_unbiased: bool) -> None:
    mixed = replace(_scores(), mix=Mix(is_unbiased=is_unbiased))
    assert_close(Gdpo(is_unbiased=is_unbiased)(_scores()), Grpo(std="batch", clip=None)(mixed))


def test_the_unit_of_a_reward_does_not_matter() -> None:
    stretched = VALUES * torch.tensor([64.0, 0.25]) + torch.tensor([-128.0, 4.0])
    assert_close(Gdpo(epsilon=0.0)(_scores(stretched)), Gdpo(epsilon=0.0)(_scores()))


def test_with_one_reward_it_is_grpo_but_for_the_size_of_all() -> None:
    scores = scored([0.1, 0.9, 0.4, 3.0, 8.0, 7.0], [0, 0, 0, 1, 1, 1])
    ratio = Gdpo(epsilon=0.0)(scores) / Grpo(epsilon=0.0, clip=None)(scores)
    assert_close(ratio, torch.ones(6))


def test_equal_sums_of_different_rewards_are_told_apart() -> None:
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    made = scored([0.0] * 4, values=values, names=("a", "b"), weights=(1.0, 1.0))
    plain, decoupled = Grpo()(made), Gdpo()(made)
    assert plain[0] == plain[1] and decoupled[0] != decoupled[1]


def test_a_reward_that_is_only_watched_and_one_that_could_not_be_judged_take_no_part() -> None:
    values = VALUES.clone()
    values[:, 1] = NAN
    assert_close(Gdpo()(_scores(values, (1.0, 0.0))), Gdpo()(_scores().of("a")))
    values = VALUES.clone()
    values[2] = NAN
    valid = torch.tensor([True, True, False, *[True] * 5])
    rows = valid.nonzero()[:, 0]
    got = Gdpo()(replace(_scores(values), valid=valid))
    assert got[2] == 0
    assert_close(got[rows], Gdpo()(_scores().select(rows)))


def test_an_epsilon_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        Gdpo(epsilon=-1.0)
