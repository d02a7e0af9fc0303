"""Stratified GRPO against a slow loop over strata, and where it is GRPO."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.best_worst import BestWorst
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.rloo import Rloo
from mmrl.advantages.stratified import Stratified
from mmrl.advantages.tree import Tree
from mmrl.core.data import Scores
from mmrl.system.errors import RunError
from tests.advantages.scored import NAN, scored
from tests.parameters import in_one_test

# Two tasks; of the first, episodes of 1, 1, 2, 2 and 3 turns, of the second of 1, 1 and 2; one turn could not be judged
EPISODE = [0, 1, 2, 2, 3, 3, 4, 4, 4, 5, 6, 7, 7]
TURN = [0, 0, 0, 1, 0, 1, 0, 1, 2, 0, 0, 0, 1]
GROUP = [4] * 9 + [2] * 4
REWARD = [1.0, 0.25, 0.5, 0.5, 0.0, 0.0, 0.75, 0.75, 0.75, 1.0, 0.0, 1.0, 1.0]


def episodes(reward: list[float] = REWARD, **changes: Any) -> Scores:
    made = {"episode": torch.tensor(EPISODE), "turn": torch.tensor(TURN)}
    return scored(reward, GROUP, **{**made, **changes})


def counted(counts: list[float], granularity: Any = "sample") -> Scores:
    """The episodes with a second reward of weight 0, `calls`."""
    values = torch.stack([torch.tensor(REWARD), torch.tensor(counts)], 1)
    valid = torch.ones(len(REWARD), dtype=torch.bool)
    more: dict[str, Any] = {"names": ("r", "calls"), "weights": (1.0, 0.0), "granularities": ("episode", granularity)}
    return episodes(values=values, valid=valid, **more)


def slow(of: list[Any], alpha: float) -> list[float]:
    """Returns the blend by lists: `of` names the stratum of each sample."""

    def standard(row: int, others: list[int]) -> float:
        values = np.array([REWARD[one] for one in others])
        return 0.0 if values.std() == 0 else float((REWARD[row] - values.mean()) / (values.std() + 1e-4))

    everyone = range(len(REWARD))
    whole = [standard(row, [one for one in everyone if GROUP[one] == GROUP[row]]) for row in everyone]
    inside = [[one for one in everyone if (GROUP[one], of[one]) == (GROUP[row], of[row])] for row in everyone]
    return [alpha * standard(row, inside[row]) + (1 - alpha) * whole[row] for row in everyone]


@in_one_test("alpha", [0.0, 0.3, 1.0])
def test_it_is_a_slow_loop_over_the_numbers_of_turns(alpha: float) -> None:
    turns = [EPISODE.count(episode) for episode in EPISODE]
    assert_close(Stratified(alpha=alpha)(episodes()), torch.tensor(slow(turns, alpha)))


def test_what_a_reward_counts_is_added_up_over_the_turns_of_an_episode() -> None:
    calls = [0.1, 0.3, 0.1, 0.2, 0.3, 0.0, 0.0, 0.1, 0.0, 0.3, 0.1, 0.0, 0.3]
    sums = [round(sum(c for c, e in zip(calls, EPISODE, strict=True) if e == own), 3) for own in EPISODE]
    got = Stratified(by="calls", alpha=0.6)
    assert got.declaration.requires_rewards == {"calls"} and Stratified().declaration.requires_rewards == frozenset()
    assert_close(got(counted(calls)), torch.tensor(slow(sums, 0.6)))
    whole = [float(sums.index(one)) for one in sums]
    assert_close(got(counted(whole, "episode")), torch.tensor(slow(whole, 0.6)))


def test_samples_that_the_count_fails_on_are_compared_with_each_other() -> None:
    calls = [NAN, 1.0, NAN, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    sums = ["none", 1, "none", "none", 1, 1, 2, 2, 2, 1, 1, 1, 1]
    assert_close(Stratified(by="calls", alpha=1.0)(counted(calls)), torch.tensor(slow(sums, 1.0)))


@in_one_test("inner", [Grpo(), Grpo(std="none"), Rloo()])
def test_one_stratum_or_alpha_0_is_the_inner_advantage(inner: Any) -> None:
    alone = scored([0.25, 0.5, 0.75, 0.0, 1.0, NAN, 0.5], [1, 1, 1, 1, 1, 1, 0])
    assert_close(Stratified(inner=inner)(alone), inner(alone))
    assert_close(Stratified(inner=inner, alpha=0.0)(episodes()), inner(episodes()))


def test_the_offset_between_strata_is_gone() -> None:
    """The paper's decomposition: without a std, the group's advantage is the stratum's plus a constant of it."""
    plain = Grpo(std="none", clip=None)
    offset = plain(episodes()) - Stratified(alpha=1.0, inner=plain)(episodes())
    lengths = [(group, EPISODE.count(episode)) for group, episode in zip(GROUP, EPISODE, strict=True)]
    for one in set(lengths) - {(4, 3), (2, 2)}:  # alone in their strata, where a group of one learns nothing
        inside = offset[[row for row, own in enumerate(lengths) if own == one]]
        assert_close(inside, inside[:1].expand_as(inside))


def test_the_update_takes_the_samples_of_both_comparisons() -> None:
    pairs = Stratified(inner=BestWorst(), alpha=0.5)
    best = {row for row, value in enumerate(BestWorst()(episodes()).tolist()) if value}
    kept = set(pairs.update_mask(episodes()).nonzero()[:, 0].tolist())
    assert best < kept == set(range(13)) - {6, 7, 8, 11, 12} | best


def test_what_it_cannot_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="alpha must be at least 0 and at most 1"):
        Stratified(alpha=1.5)
    with pytest.raises(ValueError, match="not the branches of a tree"):
        Stratified(inner=Tree())
    with pytest.raises(RunError, match="reads the reward 'calls'"):
        Stratified(by="calls")(episodes())
