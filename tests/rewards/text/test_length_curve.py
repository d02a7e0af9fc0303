"""The two parabolas by hand, and where they meet."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from mmrl.core.contracts import ConfigError, RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.plugins import build
from mmrl.rewards.text.length_curve import LengthCurve
from tests.rewards.example import Example, make_batch


def batch_of(lengths: list[int]) -> RewardBatch:
    return make_batch(Outputs(num_tokens=torch.tensor(lengths)), ["?"] * len(lengths))


EXAMPLE = Example(
    random_batch=lambda rng: batch_of([rng.randint(0, 1100) for _ in range(8)]),
    best=lambda: batch_of([500] * 4),
    settings={"max_tokens": 1000},
)


def judge(lengths: list[int], **settings: Any) -> list[float]:
    scores: list[float] = LengthCurve(**{"max_tokens": 1000} | settings).score(batch_of(lengths)).tolist()
    return scores


def test_scores_by_hand() -> None:
    lengths = [0, 125, 250, 500, 750, 1000, 5000]
    assert judge(lengths) == pytest.approx([0, 0.4375, 0.75, 1, 0.5, -1, -1])
    assert judge([200, 100, 600], best=0.2) == pytest.approx([1, 0.75, 0.5])


def test_the_curve_is_continuous_and_has_one_top() -> None:
    scores = judge(list(range(1001)), best=0.3)
    steps = [after - before for before, after in pairwise(scores)]
    assert max(map(abs, steps)) < 0.01
    assert all(step > 0 for step in steps[:300]) and all(step < 0 for step in steps[300:])


def test_a_best_length_at_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="best must be above 0 and below 1"):
        build("rewards", {"name": "length_curve", "max_tokens": 10, "best": 1.0})
