"""DAPO's punishment, by hand and by its own equation."""

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.text.overlong import Overlong
from tests.parameters import in_one_test
from tests.rewards.example import Example, make_batch


def batch_of(lengths: list[int]) -> RewardBatch:
    return make_batch(Outputs(num_tokens=torch.tensor(lengths)), ["?"] * len(lengths))


EXAMPLE = Example(
    random_batch=lambda rng: batch_of([rng.randint(0, 1100) for _ in range(8)]),
    best=lambda: batch_of([0, 1, 700, 800, 100, 3, 5, 7]),
    settings={"max_tokens": 1000, "buffer": 200},
)


def judge(lengths: list[int], **settings: Any) -> list[float]:
    scores: list[float] = Overlong(**settings).score(batch_of(lengths)).tolist()
    return scores


def test_scores_by_hand() -> None:
    lengths = [0, 799, 800, 801, 850, 900, 999, 1000, 1001, 10**12]
    expected = [0, 0, 0, -0.005, -0.25, -0.5, -0.995, -1, -1, -1]
    assert judge(lengths, max_tokens=1000, buffer=200) == pytest.approx(expected)
    assert judge([16384, 18432, 20480], max_tokens=20480) == [0, -0.5, -1]  # the paper's


@given(st.integers(0, 3000), st.integers(1, 1000), st.integers(0, 1000))
def test_it_is_equation_13(length: int, buffer: int, more: int) -> None:
    most = buffer + more
    if length <= most - buffer:
        expected = 0.0
    elif length <= most:
        expected = ((most - buffer) - length) / buffer
    else:
        expected = -1.0
    assert judge([length], max_tokens=most, buffer=buffer) == pytest.approx([expected])


@in_one_test(("most", "buffer"), [(1000, 4096), (1000, 0), (1000, -1), (0, 1)])
def test_impossible_settings_are_refused(most: int, buffer: int) -> None:
    message = "at least 1, got" if buffer < 1 else f"at most max_tokens, got {buffer} and {most}"
    with pytest.raises(ValueError, match=f"buffer must be {message}"):
        Overlong(most, buffer)


def test_longer_is_never_better() -> None:
    rng = random.Random(0)
    lengths = sorted(rng.randint(0, 1200) for _ in range(200))
    scores = judge(lengths, max_tokens=1000, buffer=300)
    assert scores == sorted(scores, reverse=True)
