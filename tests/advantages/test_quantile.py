"""The baseline that is a quantile, against numpy's and by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.quantile import Quantile
from tests.advantages.scored import NAN, scored
from tests.parameters import in_one_test


@in_one_test("k", [0.1, 0.25, 0.4, 0.5, 0.9, 1.0])
@in_one_test("size", [2, 5, 8, 30])
def test_the_baseline_is_numpys_inverted_distribution(k: float, size: int) -> None:
    rewards = np.random.default_rng(size).normal(size=size).astype(np.float32)
    expected = (rewards - np.quantile(rewards, k, method="inverted_cdf")) / (rewards.std() + 1e-4)
    assert_close(Quantile(k=k, clip=None)(scored(rewards.tolist())), torch.from_numpy(expected).float())


def test_of_zeros_and_ones_hard_groups_learn_from_successes_and_easy_ones_from_failures() -> None:
    """k 0.4: hard up to a success rate of 0.6, at which the quantile is still 0."""
    for successes in range(1, 10):
        rewards = [1.0] * successes + [0.0] * (10 - successes)
        got = Quantile(k=0.4, std="none")(scored(rewards))
        expected = rewards if successes <= 6 else [reward - 1 for reward in rewards]
        assert got.tolist() == expected


def test_groups_have_baselines_of_their_own_and_invalid_samples_no_part() -> None:
    scores = scored([1, NAN, 2, 6, 30, 10, 20], [4, 4, 4, 4, 1, 1, 1])
    assert Quantile(k=0.5, std="none", clip=None)(scores).tolist() == [-1, 0, 0, 4, 10, -10, 0]


def test_the_median_of_a_symmetric_group_is_grpo() -> None:
    scores = scored([0.25, 0.5, 0.75, 0.0, 1.0])
    assert_close(Quantile(k=0.5)(scores), Grpo()(scores))


def test_rewards_may_be_shifted_and_stretched() -> None:
    rewards = [0.25, 0.5, 0.875, 0.0]
    made = Quantile(epsilon=0.0)
    assert_close(made(scored([4 * reward - 32 for reward in rewards])), made(scored(rewards)))


@pytest.mark.parametrize("k", [0.0, 1.5])
def test_a_share_out_of_range_is_refused(k: Any) -> None:
    with pytest.raises(ValueError, match="k must be above 0 and at most 1"):
        Quantile(k=k)
