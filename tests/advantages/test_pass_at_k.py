"""Advantages for the best of k against all subsets of k, and the paper's formula."""

import random
import statistics
from itertools import combinations
from math import comb, sqrt

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.pass_at_k import PassAtK, chances
from tests.advantages.scored import NAN, scored


def slow(rewards: list[float], k: int) -> list[float]:
    """Returns the advantages by a loop over all subsets of k, whose values are their best rewards."""
    subsets = list(combinations(range(len(rewards)), k))
    worth = [max(rewards[i] for i in subset) for subset in subsets]
    mean, std = statistics.fmean(worth), statistics.pstdev(worth)
    if std < 1e-9:
        return [0.0] * len(rewards)
    return [
        (statistics.fmean(value for value, subset in zip(worth, subsets, strict=True) if i in subset) - mean) / std
        for i in range(len(rewards))
    ]


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_all_subsets_graded_and_tied_in_any_order(k: int, seed: int) -> None:
    source = random.Random(seed)
    for values in ([0.0, 1.0], [0.0, 0.5, 1.0], [source.uniform(-3, 3) for _ in range(9)]):
        rewards = [source.choice(values) for _ in range(8)]
        assert_close(PassAtK(k)(scored(rewards)), torch.tensor(slow(rewards, k)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fails", [4, 5, 7])
def test_of_zeros_and_ones_it_is_the_papers_formula(fails: int) -> None:
    n, k = 8, 4
    p = 1 - comb(fails, k) / comb(n, k)
    std = sqrt(p * (1 - p))
    success, failure = (1 - p) / std, (1 - p - comb(fails - 1, k - 1) / comb(n - 1, k - 1)) / std
    got = PassAtK(k)(scored([0.0] * fails + [1.0] * (n - fails)))
    assert_close(got, torch.tensor([failure] * fails + [success] * (n - fails)), atol=1e-6, rtol=1e-5)


def test_the_best_of_one_is_grpo() -> None:
    scores = scored([1, 0, 0, 1, 1, 0.5, 2.5, NAN], [3, 3, 3, 3, 3, 0, 0, 0])
    assert_close(PassAtK(1)(scores), Grpo(epsilon=0.0, clip=None)(scores))


def test_the_mean_of_a_group_is_zero_and_rewards_may_be_shifted_and_stretched() -> None:
    rewards = [0.25, 1.0, 0.5, 0.0, 0.75, 0.5]
    got = PassAtK(3)(scored(rewards))
    assert_close(got.sum(), torch.tensor(0.0), atol=1e-5, rtol=0)
    assert_close(PassAtK(3)(scored([16 * one - 128 for one in rewards])), got)


def test_a_group_that_cannot_fail_or_has_one_subset_gets_exactly_zero() -> None:
    assert not PassAtK(3)(scored([0.1, 0.1, 0.7, 0.7, 0.7])).any(), "two failures are in no subset alone"
    assert PassAtK(3)(scored([0.1, 0.1, 0.1, 0.7, 0.7])).all()
    assert not PassAtK(3)(scored([0.1, 0.2, 0.3])).any()
    assert not PassAtK(3)(scored([0.1, 0.2, 0.3, NAN])).any()
    assert PassAtK(3).declaration.min_group_size == 4


def test_a_rare_success_counts_more_and_a_frequent_one_less_than_for_grpo() -> None:
    rare, often = scored([1.0, *[0.0] * 15]), scored([*[1.0] * 10, *[0.0] * 6])
    assert PassAtK(4)(rare).abs().sum() > 0 and PassAtK(4)(often).abs().sum() < Grpo()(often).abs().sum() / 3


def test_chances_add_up_to_one() -> None:
    for n, k in ((2, 1), (5, 3), (64, 8)):
        chance, with_it = chances(n, k)
        assert_close(chance.sum(), torch.tensor(1.0, dtype=torch.float64))
        assert_close(with_it.sum(1), torch.ones(n, dtype=torch.float64))


def test_a_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        PassAtK(0)
