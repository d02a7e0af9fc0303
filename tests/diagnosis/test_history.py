"""The windows of a history, and rules at their edges: the same curves a little nearer to health say nothing."""

from collections.abc import Sequence

import pytest

from mmrl.core.config import load_config
from mmrl.diagnosis.history import History
from mmrl.diagnosis.rules import all_findings, findings_of


def history_of(**curves: Sequence[float | None]) -> History:
    """A run whose metrics have these values from iteration 1 on; `__` is a slash, None a missing value."""
    history = History(load_config("lab/grpo"))
    for number in range(max(map(len, curves.values()))):
        line = {name.replace("__", "/"): own[number] for name, own in curves.items() if number < len(own)}
        history.add(number + 1, {name: value for name, value in line.items() if value is not None})
    return history


def names(history: History) -> set[str]:
    return {one.name for one in findings_of(history)}


def test_windows_are_the_last_the_first_and_those_up_to_an_iteration() -> None:
    history = history_of(a=[1.0, 2.0, 4.0, None, 16.0])
    assert history.mean("a", 2) == 10.0 and history.mean("a", 5) is None
    assert history.mean("a", 5, fewest=4) == 5.75 and history.mean("b") is None
    assert history.first("a", 2) == 1.5 and history.first("a", 5) is None
    assert history.around("a", 3, 2) == 3.0 and history.around("a", 4, 2) == 3.0, "no value of 4, none after it"
    assert history.around("a", 0) is None and history.around("b", 3) is None


def test_by_iteration_gives_back_what_was_added() -> None:
    history = History(load_config("lab/grpo"))
    history.add(0, {"held_out/score": 0.5})
    history.add(2, {"a": 1.0, "b": float("nan")})
    history.add(2, {"held_out/score": 0.75})
    history.add(1, {"a": 3.0})
    assert history.iteration == 2
    assert history.by_iteration() == {0: {"held_out/score": 0.5}, 1: {"a": 3.0}, 2: {"a": 1.0, "held_out/score": 0.75}}


def test_a_finding_is_that_of_its_first_iteration() -> None:
    history = history_of(groups__degenerate=[0.0, 0.8, 0.8, 0.8, 0.9], reward__mean=[0.1] * 5)
    (one,) = (one for one in all_findings(history) if one.name == "groups_without_spread")
    assert (one.iteration, one.value) == (3, 0.8)


def test_a_reward_that_falls_within_its_own_spread_is_no_finding() -> None:
    falls: dict[str, Sequence[float | None]] = {"reward__mean": [0.5, 0.3, 0.25, 0.2], "reward__std": [0.3] * 4}
    assert "reward_fell" not in names(history_of(**falls))
    assert "reward_fell" in names(history_of(**falls | {"reward__std": [0.2] * 4}))


@pytest.mark.parametrize(("end", "is_hacked"), [(0.8, True), (0.3, False), (0.1, False)])
def test_a_held_out_score_that_falls_with_the_reward_is_not_hacked(end: float, is_hacked: bool) -> None:
    scores = [0.1, 0.2, 0.6, 0.5, 0.5, 0.5, 0.4]
    history = history_of(reward__mean=[0.3, 0.3, 0.3, 0.3, end, end, end], held_out__score=scores)
    assert ("reward_hacked" in names(history)) is is_hacked


def test_a_score_that_was_best_before_training_is_not_hacked() -> None:
    history = History(load_config("lab/grpo"))
    history.add(0, {"held_out/score": 0.9})
    for iteration in range(1, 6):
        history.add(iteration, {"reward/mean": iteration / 10, "held_out/score": 0.5})
    assert "reward_hacked" not in names(history) and "held_out_fell" in names(history)


def test_short_answers_may_change_their_length() -> None:
    assert "lengths_drift" not in names(history_of(answers__tokens=[4.0] * 3 + [30.0] * 3))
    assert "lengths_drift" in names(history_of(answers__tokens=[4.0] * 3 + [33.0] * 3))
    assert "lengths_drift" in names(history_of(answers__tokens=[80.0] * 3 + [39.0] * 3))
