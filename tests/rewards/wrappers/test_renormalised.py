"""renormalised by hand, and the signs that it is made for."""

import random

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.scoring.calls import call_reward
from tests.rewards.example import Example
from tests.rewards.inner import LAST, STEPS, WRITTEN, of_steps, steps, wrapped

EXAMPLE = Example(
    random_batch=steps, best=lambda: of_steps("1 - 1", "0.2 1"), settings={"reward": STEPS, "outcome": LAST}
)


def test_the_outcome_is_added_to_each_step_by_hand() -> None:
    reward = wrapped("renormalised", reward=STEPS, outcome=LAST)
    scores = reward.score(of_steps("0.2 - 0.9", "0.5", "- 1 0"))  # the last word is the outcome too
    assert scores[0].tolist() == pytest.approx([0.1, 0, 0.8], abs=1e-6)
    assert scores[1].tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    assert scores[2].tolist() == pytest.approx([0, 0, -1], abs=1e-6)
    assert reward.range == (-1.0, 1.0) and reward.granularity == "segment"
    other = wrapped("renormalised", reward=STEPS, outcome=LAST, centre=0.5)
    assert other.range == (-0.5, 1.5)
    assert other.score(of_steps("0.2 1"))[0].tolist() == pytest.approx([0.7, 1.5], abs=1e-6)


def test_no_step_of_a_right_answer_is_blamed_and_none_of_a_wrong_one_praised() -> None:
    source, reward = random.Random(1), wrapped("renormalised", reward=STEPS, outcome=LAST)
    for outcome in (0, 1):
        texts = [" ".join([*(str(source.random()) for _ in range(length)), str(outcome)]) for length in range(1, 20)]
        batch = of_steps(*texts)
        numbers = reward.score(batch)[reward.ends(batch)]
        assert (numbers >= 0).all() if outcome else (numbers <= 0).all()
        assert numbers.unique().numel() > 100


def test_a_sample_whose_outcome_cannot_be_judged_is_left_out() -> None:
    first = {"name": "tests.rewards.inner:Written", "place": 0}
    answer = call_reward("r", wrapped("renormalised", reward=STEPS, outcome=first), of_steps("0.5 1", "nan 1"))
    assert answer.values.isnan().tolist() == [False, True]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="must judge steps, segments or tokens, got one that judges samples"):
        wrapped("renormalised", reward=WRITTEN, outcome=WRITTEN)
    with pytest.raises(ConfigError, match="the outcome must judge samples, got one that judges segments"):
        wrapped("renormalised", reward=STEPS, outcome=STEPS)
