"""Advantages over the batch against slow loops and statistics."""

import statistics
from collections.abc import Sequence

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.reinforce_pp import ReinforcePP
from mmrl.core.declarations import AdvantageDeclaration
from tests.advantages.scored import NAN, decided, scored

GROUP = [0, 0, 0, 4, 4, 4, 2]
REWARD = [1.0, 2.0, 6.0, 3.0, 3.0, 3.0, 9.0]
LENGTHS = [2, 1, 4, 3, 1, 1, 2]


def slow(rewards: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Returns every reward against all rewards, each repeated as often as it counts."""
    everything = [reward for reward, count in zip(rewards, counts, strict=True) for _ in range(count)]
    mean, std = statistics.fmean(everything), statistics.pstdev(everything)
    return [(reward - mean) / std for reward in rewards]


def test_without_a_baseline_each_reward_is_compared_with_the_batch() -> None:
    got = ReinforcePP(epsilon=0.0)(scored(REWARD, GROUP))
    assert_close(got, torch.tensor(slow(REWARD, [1] * 7)))
    assert (got[3:6] < 0).all() and got[6] > 0, "a group of equal rewards, and one alone, learn"


def test_counting_decisions_is_writing_each_reward_down_as_often() -> None:
    paths = decided(*LENGTHS)
    got = ReinforcePP(counts="decisions", epsilon=0.0)(scored(REWARD, GROUP), paths)
    assert_close(got, torch.tensor(slow(REWARD, LENGTHS)))
    centred = [-2.0, -1.0, 3.0, 0.0, 0.0, 0.0, 0.0]
    expected = torch.tensor([*slow(centred, LENGTHS)[:3], 0, 0, 0, 0])
    assert_close(ReinforcePP("group", "decisions", 0.0)(scored(REWARD, GROUP), paths), expected)


def test_with_the_baseline_of_the_group_it_is_grpo_with_the_centred_std_of_the_batch() -> None:
    scores = scored([*REWARD, NAN, 5.0, -3.0], [*GROUP, 0, 2, 7])
    expected = Grpo(std="centred_batch", clip=None, epsilon=1e-3)(scores)
    assert_close(ReinforcePP(baseline="group", epsilon=1e-3)(scores), expected)
    assert (expected[[3, 4, 5, 7, 9]] == 0).all()


def test_answers_of_one_length_count_alike() -> None:
    scores, paths = scored(REWARD, GROUP), decided(*[3] * 7)
    for baseline in ("none", "group"):
        plain = ReinforcePP(baseline)(scores)
        assert_close(ReinforcePP(baseline, "decisions")(scores, paths), plain)


def test_the_batch_has_mean_zero_and_std_one() -> None:
    got = ReinforcePP()(scored(REWARD, GROUP))
    assert_close(got.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    assert_close(got.std(correction=0), torch.tensor(1.0))


@pytest.mark.parametrize("baseline", ["none", "group"])
def test_rewards_may_be_shifted_and_stretched(baseline: str) -> None:
    made = ReinforcePP(baseline, epsilon=0.0)  # type: ignore[arg-type]
    stretched = [4 * reward - 128 for reward in REWARD]
    assert_close(made(scored(stretched, GROUP)), made(scored(REWARD, GROUP)))


def test_samples_without_decisions_enter_no_statistic_of_decisions() -> None:
    scores = scored([0.0, 1.0, 50.0], [0, 0, 0])
    got = ReinforcePP(counts="decisions", epsilon=0.0)(scores, decided(2, 2, 0))
    assert_close(got[:2], torch.tensor([-1.0, 1.0]))
    # and where those that have some agree there is no scale to measure by
    assert not ReinforcePP(counts="decisions")(scored([0.1, 0.1, 50.0]), decided(2, 5, 0)).any()
    assert not ReinforcePP("group", "decisions")(scored([0.1, 0.1, 50.0]), decided(2, 5, 0)).any()


def test_where_no_sample_has_decisions_all_count_alike() -> None:
    scores = scored(REWARD, GROUP)
    assert_close(ReinforcePP(counts="decisions")(scores, decided(*[0] * len(REWARD))), ReinforcePP()(scores))


def test_it_says_what_it_compares_with() -> None:
    assert ReinforcePP().declaration == AdvantageDeclaration(compares_with="batch", min_group_size=1)
    assert ReinforcePP("group").declaration == AdvantageDeclaration()


def test_an_epsilon_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        ReinforcePP(epsilon=-1.0)
