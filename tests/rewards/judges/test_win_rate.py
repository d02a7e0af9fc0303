"""win_rate against a slow loop, the lexicographic mix and PickScore's own softmax; what win rates sum to."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mmrl.core.contracts import ConfigError
from mmrl.core.data import Scores
from mmrl.core.plugins import build
from mmrl.rewards.base.win_rates import win_rates
from tests.parameters import in_one_test
from tests.rewards.example import Example
from tests.rewards.inner import WRITTEN, numbers, said, wrapped

# The ground truth beats all others, and nobody beats itself: in a group of equals each has one half.
EXAMPLE = Example(random_batch=numbers, settings={"reward": WRITTEN})
SCORES = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), min_size=1, max_size=7)
WINS = st.integers(1, 6).flatmap(
    lambda size: st.lists(st.lists(st.floats(0, 1), min_size=size, max_size=size), min_size=size, max_size=size)
)


def rates_of(scores: list[float], **settings: float) -> list[float]:
    batch = said(*map(str, scores))
    batch = replace(batch, group=torch.zeros(len(scores), dtype=torch.int64))
    found: list[float] = wrapped("win_rate", **settings).score(batch).tolist()
    return found


@pytest.mark.slow
@given(SCORES, st.sampled_from([0.0, 0.2]))
def test_it_is_a_count_of_wins_and_half_the_ties(scores: list[float], margin: float) -> None:
    expected = []
    for mine, score in enumerate(scores):
        others = [other for place, other in enumerate(scores) if place != mine]
        points = [1.0 if score - o > margin else 0.0 if o - score > margin else 0.5 for o in others]
        expected.append(sum(points) / len(points) if points else 0.5)
    assert rates_of(scores, margin=margin) == pytest.approx(expected)


@pytest.mark.slow
@given(SCORES)
def test_without_a_margin_it_is_the_lexicographic_mix_of_one_reward(scores: list[float]) -> None:
    size = len(scores)
    mix = build("mixes", {"name": "lexicographic", "order": ("r",)})
    one = Scores(
        names=("r",),
        weights=(1.0,),
        values=torch.tensor(scores)[:, None],
        valid=torch.ones(size, dtype=torch.bool),
        group=torch.zeros(size, dtype=torch.int64),
        episode=torch.arange(size),
        turn=torch.zeros(size, dtype=torch.int64),
    )
    assert rates_of(scores) == pytest.approx(mix(one).tolist())


def test_with_a_temperature_it_is_the_softmax_of_two_scores() -> None:
    first, second, third = 0.2, 0.9, 0.5
    against = [math.exp(first / 0.1) / (math.exp(first / 0.1) + math.exp(other / 0.1)) for other in (second, third)]
    assert rates_of([first, second, third], temperature=0.1)[0] == pytest.approx(sum(against) / 2, rel=1e-5)


@pytest.mark.slow
@given(WINS)
def test_a_groups_win_rates_have_the_mean_one_half_and_turn_round_with_the_judge(wins: list[list[float]]) -> None:
    judged = torch.tensor(wins, dtype=torch.float64)
    rates = win_rates(judged)
    assert float(rates.mean()) == pytest.approx(0.5) and bool(((rates >= -1e-9) & (rates <= 1 + 1e-9)).all())
    torch.testing.assert_close(win_rates(1 - judged), 1 - rates, check_dtype=False)


@given(WINS, st.floats(-1, 1))
def test_what_a_judge_gives_to_the_first_place_cancels(wins: list[list[float]], bias: float) -> None:
    judged = torch.tensor(wins, dtype=torch.float64)
    torch.testing.assert_close(win_rates(judged + bias), win_rates(judged), check_dtype=False)


def test_a_judge_that_always_takes_the_first_knows_nothing() -> None:
    def pair(left: int, right: int) -> float:
        return float(left < right)

    fair = Tensor([[pair(i, j) for j in range(4)] for i in range(4)])
    assert win_rates(fair).tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert win_rates(torch.ones(4, 4)).tolist() == [0.5] * 4


def test_nobody_is_compared_with_controls_or_with_what_could_not_be_judged() -> None:
    batch = replace(said("0.2", "0.9", "nan", "0.5"), is_control=torch.tensor([False, True, False, False]))
    found = wrapped("win_rate").score(batch)
    assert found[[0, 1, 3]].tolist() == [0, 0.5, 1] and found[2].isnan()


def test_groups_are_apart() -> None:
    assert wrapped("win_rate").score(said("0.1", "0.2", "0.3", "0.4", "0.9", "0.8", "0.7", "0.6")).tolist() == (
        pytest.approx([0, 1 / 3, 2 / 3, 1, 1, 2 / 3, 1 / 3, 0])
    )


@in_one_test(
    ("settings", "message"),
    [
        ({"temperature": 0}, "temperature must be above 0"),
        ({"temperature": math.inf}, "temperature: should be a finite number"),
        ({"margin": -0.1}, "margin must be at least 0"),
        ({"margin": 0.1, "temperature": 1.0}, "not both"),
        ({"reward": {"name": "win_rate", "reward": WRITTEN}}, "must judge samples, got one that judges groups"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrapped("win_rate", **settings)
