"""SEED-GRPO against a slow loop over clusters."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.advantages.dr_grpo import DrGrpo
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.seed_grpo import SeedGrpo
from mmrl.core.data import Scores
from mmrl.system.errors import RunError

# answers by group; None: no answer. One group of one mind, one all different, one of two that do not vote
ANSWERS = ["a", "a", "b", "c", "x", "x", "x", "k", "l", "m", "p", None, None, "q", None]
GROUP = [3, 3, 3, 3, 8, 8, 8, 5, 5, 5, 9, 9, 9, 9, 2]
REWARD = torch.tensor([1.0, 0.0, 0.5, 0.2, 1.0, 0.0, 0.3, 0.1, 0.7, 0.9, 0.4, 0.6, 0.0, 0.2, 1.0])


def shares() -> Tensor:
    """Returns the rewards of majority_vote with `soft`."""
    votes = {g: Counter(a for a, own in zip(ANSWERS, GROUP, strict=True) if own == g and a) for g in set(GROUP)}
    pairs = zip(ANSWERS, GROUP, strict=True)
    return torch.tensor([votes[g][a] / votes[g].total() if a else 0.0 for a, g in pairs])


def scores(valid: Tensor | None = None) -> Scores:
    numbers, everyone = torch.arange(len(GROUP)), torch.ones(len(GROUP), dtype=torch.bool)
    values, names = torch.stack([REWARD, shares()], 1), ("r", "majority_vote")
    valid = everyone if valid is None else valid
    return Scores(values, names, (1.0, 0.0), valid, torch.tensor(GROUP), numbers, numbers * 0)


def slow(group: int) -> float:
    """Returns -(1 / clusters) sum log p(cluster) / log n."""
    votes = Counter(answer for answer, own in zip(ANSWERS, GROUP, strict=True) if own == group and answer)
    if votes.total() < 2:
        return 0.0
    entropy = -sum(math.log(size / votes.total()) for size in votes.values()) / len(votes)
    return entropy / math.log(votes.total())


def test_the_uncertainty_is_that_of_a_slow_loop_over_clusters() -> None:
    got = SeedGrpo().uncertainty(scores()).tolist()
    assert got == pytest.approx([slow(group) for group in GROUP])
    assert slow(8) == 0 and slow(5) == pytest.approx(1) and 0 < slow(3) < 1


def test_the_advantage_shrinks_by_the_uncertainty_of_its_group() -> None:
    got, plain = SeedGrpo(alpha=0.4)(scores()), DrGrpo()(scores())
    factor = torch.tensor([1 - 0.4 * slow(group) for group in GROUP])
    assert_close(got, plain * factor)


@pytest.mark.parametrize("inner", [DrGrpo(), Grpo()])
def test_without_alpha_it_is_the_inner_advantage(inner: Any) -> None:
    assert_close(SeedGrpo(alpha=0.0, inner=inner)(scores()), inner(scores()), rtol=0, atol=0)


def test_a_group_of_one_mind_keeps_its_advantage() -> None:
    rows = torch.tensor(GROUP) == 8
    assert_close(SeedGrpo(alpha=1.0)(scores())[rows], DrGrpo()(scores())[rows])


def test_votes_that_could_not_be_judged_are_not_counted() -> None:
    valid = torch.ones(len(GROUP), dtype=torch.bool)
    valid[[0, 1, 2]] = False  # one voter is left in its group
    got = SeedGrpo().uncertainty(scores(valid))
    assert (got[:4] == 0).all() and got[7].item() == pytest.approx(1)


def test_wrong_settings_and_a_missing_reward_are_refused() -> None:
    with pytest.raises(ValueError, match=r"alpha must be at least 0 and at most 1, got 1\.5"):
        SeedGrpo(alpha=1.5)
    with pytest.raises(RunError, match="reads the reward 'shares', got r, majority_vote"):
        SeedGrpo(votes="shares")(scores())
