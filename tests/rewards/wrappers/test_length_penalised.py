"""length_penalised against both papers' formulas by hand."""

import math
import random

import pytest
import torch

from mmrl.core.contracts import ConfigError, RewardBatch
from tests.rewards.example import Example
from tests.rewards.inner import WRITTEN, said, wrapped


def lengths(*pairs: tuple[float, int]) -> RewardBatch:
    return said(*(str(score) for score, _ in pairs), num_tokens=torch.tensor([count for _, count in pairs]))


def random_batch(source: random.Random) -> RewardBatch:
    return lengths(*((source.choice([0, 1, source.random()]), source.randrange(1, 500)) for _ in range(12)))


# the shortest answer of its group, and right
EXAMPLE = Example(
    random_batch=random_batch, best=lambda: lengths((1, 1), (0, 2), (1, 3), (0, 4)), settings={"reward": WRITTEN}
)


def test_kimi_by_hand() -> None:
    # 10 to 30 tokens: 1/2, 0, -1/2 and -1/4; wrong answers gain nothing
    batch = lengths((1, 10), (1, 20), (0, 10), (0.4, 30), (1, 7), (1, 7), (0, 7), (0, 7))
    scores = wrapped("length_penalised", penalty=0.4).score(batch).tolist()
    assert scores == pytest.approx([1 + 0.2, 1, 0, 0.4 - 0.2, 1, 1, 0, 0])
    assert wrapped("length_penalised", penalty=0.4).range == pytest.approx((-0.2, 1.2))


def test_efficient_by_hand() -> None:
    # right ones of 10 and 30 tokens: mean 20, population std 10
    batch = lengths((1, 10), (1, 30), (0, 500), (0.2, 3))
    scores = wrapped("length_penalised", kind="efficient", penalty=0.4).score(batch).tolist()
    short, long = (1 / (1 + math.exp(-place)) for place in (-1, 1))
    assert scores == pytest.approx([1 - 0.4 * short, 1 - 0.4 * long, 0, 0.2])
    alone = wrapped("length_penalised", kind="efficient", penalty=0.4).score(lengths((1, 10), (0, 30)))
    assert alone.tolist() == pytest.approx([1 - 0.4 / 2, 0])


def test_controls_set_no_length() -> None:
    from dataclasses import replace

    batch = replace(lengths((1, 10), (1, 20), (1, 90), (1, 10)), is_control=torch.tensor([False, False, True, False]))
    assert wrapped("length_penalised").score(batch).tolist() == pytest.approx([1.25, 0.75, 0.75, 1.25])


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="penalty must be above 0"):
        wrapped("length_penalised", penalty=0.0)
    with pytest.raises(ConfigError, match=r"below 1 for kind 'efficient', got 1\.0"):
        wrapped("length_penalised", kind="efficient", penalty=1.0)
    with pytest.raises(ConfigError, match="must judge samples"):
        wrapped("length_penalised", reward={"name": "trusted", "reward": WRITTEN, "accuracy": WRITTEN})


def test_the_lower_end_may_lie_below_that_of_the_inner_reward() -> None:
    high = {"name": "clip_range", "reward": WRITTEN, "low": 0.5}
    reward = wrapped("length_penalised", kind="efficient", reward=high, penalty=0.4)
    assert reward.range == pytest.approx((0.3, 1.0))
    scores = reward.score(lengths((0.5, 900), *[(0.5, 1)] * 3))
    assert 0.3 < float(scores.min()) < 0.4


def test_the_length_counts_only_in_groups_that_are_right_enough() -> None:
    # 3 of 4 and 1 of 4 are right; the second group keeps its scores
    batch = lengths((1, 10), (1, 20), (1, 30), (0, 30), (1, 10), (0, 20), (0, 30), (0.4, 30))
    plain = wrapped("length_penalised", penalty=0.4).score(batch).tolist()
    gated = wrapped("length_penalised", penalty=0.4, min_right=0.5).score(batch).tolist()
    assert gated[:4] == plain[:4] == pytest.approx([1.2, 1, 0.8, -0.2])
    assert gated[4:] == pytest.approx([1, 0, 0, 0.4]) and plain[4:] != gated[4:]
    assert wrapped("length_penalised", penalty=0.4, min_right=0.75).score(batch).tolist() == gated
    assert wrapped("length_penalised", penalty=0.4, min_right=0.8).score(batch).tolist() == [1, 1, 1, 0, *gated[4:]]
