"""conditional by hand, and against a plain loop over groups."""

import random
from dataclasses import replace

import pytest
import torch

from mmrl.core.contracts import ConfigError
from tests.parameters import in_one_test
from tests.rewards.example import Example
from tests.rewards.inner import SECOND, WRITTEN, numbers, said, wrapped

# the first number is the auxiliary reward, the second the accuracy
EXAMPLE = Example(
    random_batch=numbers,
    best=lambda: said(*["1 1", "1 1", "0 0", "0 0"]),
    settings={"reward": WRITTEN, "accuracy": SECOND},
)


@in_one_test(
    ("texts", "scores"),
    [
        (("1 1", "1 1", "0 0", "0 1"), [1, 1, 0, 0]),  # 1 with, 1/2 without: the step helps
        (("1 0", "1 1", "0 1", "0 1"), [-1, -1, 0, 0]),
        (("1 0", "1 1", "0 0", "0 1"), [0, 0, 0, 0]),  # no difference
        (("1 1", "1 1", "1 0", "1 1"), [0, 0, 0, 0]),  # all take the step
        (("0 1", "0 1", "0 0", "0 1"), [0, 0, 0, 0]),  # none does
        (("0.8 1", "0.5 1", "0.4 0", "0 0"), [0.8, 0.5, 0.4, 0]),  # 0.4 is no step, and has the group's sign
        (("1 0.6", "1 0.8", "0 0.7", "0 0.7"), [0, 0, 0, 0]),  # equal but for rounding
    ],
)
def test_the_sign_by_hand(texts: tuple[str, ...], scores: list[float]) -> None:
    assert wrapped("conditional", accuracy=SECOND).score(said(*texts)).tolist() == pytest.approx(scores)


def test_groups_are_judged_apart() -> None:
    batch = said("1 1", "1 1", "0 0", "0 0", "1 0", "1 0", "0 1", "0 1")
    assert wrapped("conditional", accuracy=SECOND).score(batch).tolist() == [1, 1, 0, 0, -1, -1, 0, 0]


def test_a_difference_within_the_margin_is_none() -> None:
    batch = said("1 1", "1 1", "0 1", "0 0")  # the difference is 1/2
    for margin, score in ((0.4, 1), (0.5, 0), (0.6, 0)):
        assert wrapped("conditional", accuracy=SECOND, margin=margin).score(batch)[0].item() == score
    assert wrapped("conditional", accuracy=SECOND, margin=0.4).score(said("1 0", "1 1", "0 1", "0 1"))[0].item() == -1


def test_the_step_is_taken_from_a_threshold() -> None:
    batch = said("0.7 1", "0.7 1", "0.6 0", "0.6 0")
    assert wrapped("conditional", accuracy=SECOND).score(batch).tolist() == [0, 0, 0, 0]
    found = wrapped("conditional", accuracy=SECOND, threshold=0.7).score(batch)
    assert found.tolist() == pytest.approx([0.7, 0.7, 0.6, 0.6])


def test_controls_are_in_no_mean() -> None:
    batch = said("1 1", "1 0", "1 0", "0 0")
    reward = wrapped("conditional", accuracy=SECOND, margin=0.5)
    assert reward.score(batch).tolist() == [0, 0, 0, 0]  # 1/3 with, 0 without
    controls = replace(batch, is_control=torch.tensor([False, True, True, False]))
    assert reward.score(controls).tolist() == [1, 1, 1, 0]


def test_what_cannot_be_judged_is_in_no_mean_and_stays_so() -> None:
    found = wrapped("conditional", accuracy=SECOND).score(said("1 1", "nan 0", "0 nan", "0 0"))
    assert found[[0, 3]].tolist() == [1, 0] and found[1:3].isnan().all()


def test_random_groups_against_a_plain_loop() -> None:
    source, reward = random.Random(0), wrapped("conditional", accuracy=SECOND, margin=0.1)
    seen = set()
    for _ in range(50):
        rows = [(source.choice([0, 0.3, 1]), source.choice([0, 0.5, 1])) for _ in range(4)]
        using = [accuracy for auxiliary, accuracy in rows if auxiliary >= 0.5]
        other = [accuracy for auxiliary, accuracy in rows if auxiliary < 0.5]
        gap = sum(using) / len(using) - sum(other) / len(other) if using and other else 0
        sign = 1 if gap > 0.1 else -1 if gap < -0.1 else 0
        seen.add(sign)
        found = reward.score(said(*(f"{auxiliary} {accuracy}" for auxiliary, accuracy in rows)))
        assert found.tolist() == pytest.approx([sign * auxiliary for auxiliary, _ in rows])
    assert seen == {-1, 0, 1}


def test_the_range_is_that_of_both_signs() -> None:
    assert wrapped("conditional", accuracy=SECOND).range == (-1, 1)
    assert wrapped("conditional", reward={**WRITTEN, "high": 2.0}, accuracy=SECOND).range == (-2, 2)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="margin must be at least 0"):
        wrapped("conditional", accuracy=SECOND, margin=-0.1)
    with pytest.raises(ConfigError, match="threshold: should be a finite number, got nan"):
        wrapped("conditional", accuracy=SECOND, threshold=float("nan"))
    with pytest.raises(ConfigError, match="must judge samples, got one that judges groups"):
        wrapped("conditional", accuracy={"name": "conditional", "reward": WRITTEN, "accuracy": SECOND})
