"""unlikeliness by hand: ranks within groups, ties, controls."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError, Likelihoods, RewardBatch
from tests.rewards.example import Example
from tests.rewards.inner import WRITTEN, numbers, said, wrapped


def with_log_probs(batch: RewardBatch, *rows: float | list[float]) -> RewardBatch:
    """The batch, each answer with the log-probs of its tokens."""
    listed = [row if isinstance(row, list) else [row] for row in rows]
    table = torch.zeros(len(listed), max(map(len, listed)))
    for number, row in enumerate(listed):
        table[number, : len(row)] = torch.tensor(row)
    return replace(batch, likelihoods={"sampled": Likelihoods(table)})


def random_batch(given: random.Random) -> RewardBatch:
    batch = numbers(given)
    return with_log_probs(batch, *(-9 * given.random() for _ in range(len(batch))))


def best() -> RewardBatch:
    """Right answers of which one is the rarest of its four."""
    return with_log_probs(said(*["1"] * 4), -1, -2, -3, -4)


EXAMPLE = Example(random_batch=random_batch, best=best, settings={"reward": WRITTEN, "scale": 0.25})


def test_the_likeliest_loses_most() -> None:
    batch = with_log_probs(said("1", "1", "0.5", "0"), [-1, -1], [-0.5], [-4], [-0.1])  # -2, -0.5, -4, -0.1
    # ranks 2, 1, 3, 0 of four: factors 1 - 0.25 (4 - rank) / 4
    expected = [1 - 0.25 * 2 / 4, 1 - 0.25 * 3 / 4, 0.5 * (1 - 0.25 * 1 / 4), 0]
    assert wrapped("unlikeliness").score(batch).tolist() == pytest.approx(expected)
    assert wrapped("unlikeliness", scale=0).score(batch).tolist() == [1, 1, 0.5, 0]
    assert wrapped("unlikeliness", scale=1).score(batch)[1].item() == pytest.approx(0.25)


def test_equal_likelihoods_share_their_ranks() -> None:
    batch = with_log_probs(said("1", "1", "1"), -1, -1, -2)
    factors = wrapped("unlikeliness", scale=0.3).score(batch).tolist()
    assert factors == pytest.approx([1 - 0.3 * 2.5 / 3, 1 - 0.3 * 2.5 / 3, 1 - 0.3 * 1 / 3])


def test_groups_are_ranked_apart_and_controls_not_at_all() -> None:
    batch = with_log_probs(said("1", "1", "1", "1"), -1, -1, -2, -5)
    batch = replace(batch, group=torch.tensor([0, 1, 0, 1]), is_control=torch.tensor([False, False, False, True]))
    half, whole = 1 - 0.25 * 1 / 2, 1 - 0.25
    assert wrapped("unlikeliness").score(batch).tolist() == pytest.approx([whole, whole, half, 1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": 1.5}, "scale must be at least 0 and at most 1, got 1.5"),
        (
            {"reward": {"name": "repetition"}},
            "must be at least 0",
        ),
        ({"reward": {"name": "majority_vote"}}, "the inner reward must judge samples, got one that judges groups"),
    ],
)
def test_what_it_cannot_weigh_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrapped("unlikeliness", **settings)
