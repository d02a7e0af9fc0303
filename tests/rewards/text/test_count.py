"""Counts by hand, CrowdVLM-R1's formula, and what is no count."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.rewards.text.count import Count
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown


def batch(said: list[str], count: Any = 8) -> RewardBatch:
    return answers(said, {"count": count})


def judge(said: list[str], count: Any = 8, **settings: Any) -> Any:
    return Count(**settings).score(batch([f"<answer>{one}</answer>" for one in said], count)).tolist()


def random_batch(random: random.Random) -> RewardBatch:
    numbers = [f"<answer>{random.randint(0, 20)}</answer>" for _ in range(6)]
    return batch(["<answer>8</answer>", random.choice(["eight", "<answer>many</answer>"]), *numbers])


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: batch(["<answer>8</answer>", "<think>7?</think><answer> 8.0 </answer>"] * 2)
)


def test_scores_by_hand() -> None:
    said = ["8", "9", "7", "12", "11", "4", "5", "0", "16", "100"]
    assert judge(said) == [1] + [0] * 9
    errors = [0, 1 / 8, 1 / 8, 4 / 8, 3 / 8, 4 / 8, 3 / 8, 1, 1, 92 / 8]
    assert judge(said, kind="relative") == pytest.approx([max(0, 1 - error) for error in errors])
    paper = [1.5 - error if error < 0.5 else 0 for error in errors]
    assert [1.5 * score for score in judge(said, kind="fuzzy")] == pytest.approx(paper)


@pytest.mark.parametrize("kind", ["exact", "fuzzy", "relative"])
def test_nothing_can_be_counted_too(kind: str) -> None:
    """CrowdVLM-R1's code divides by 0 there and scores 0."""
    assert judge(["0", "1", "none"], 0, kind=kind) == [1, 0, 0]


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_nearer_number_never_earns_less(true: int, one: int, other: int) -> None:
    near, far = sorted((one, other), key=lambda number: abs(number - true))
    for kind in ("exact", "fuzzy", "relative"):
        better, worse = judge([str(near), str(far)], true, kind=kind)
        assert better >= worse and judge([str(true)], true, kind=kind) == [1]


@in_one_test(
    "said",
    [
        "",
        "eight",
        "8 people",
        "8 9",
        "7, 8",
        "8, 8",
        "1,008",
        "8.5",
        "-8",
        "8e0",
        "0x8",
        "\u0668",
        "\uff18",
        "8/1",
        "8!",
    ],
)
def test_what_is_no_number_alone_scores_0(said: str) -> None:
    for kind in ("exact", "fuzzy", "relative"):
        assert judge([said], kind=kind) == [0]


def test_a_number_is_a_number_however_it_is_written() -> None:
    assert judge([" 8 ", "+8", "8.0", "08", "(8)"]) == [1] * 5
    assert Count(tag=None).score(batch(["8", "8 or 9", "<answer>8</answer>"])).tolist() == [1, 0, 0]
    assert Count().score(batch(["8", "<answer>8</answer><answer>8</answer>"])).tolist() == [0, 0]
    assert judge(["8"], 8.0) == [1]


@pytest.mark.slow
@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    for kind in ("exact", "fuzzy", "relative"):
        check_scores(Count(kind=kind), batch(texts))


def test_hostile_texts_have_a_score() -> None:
    check_scores(Count(kind="relative"), batch(list(HOSTILE)))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(Count(kind="relative"), batch(list(megabytes(piece))))


@in_one_test("count", [None, "8", -1, 2.5, True, float("nan"), float("inf"), 10**400, [8]])
def test_targets_that_cannot_judge(count: Any) -> None:
    with pytest.raises(ValueError, match=r"target\.count must be a whole number of at least 0, got"):
        judge(["8"], count)
    with pytest.raises(ValueError, match=r"target\.count"):
        Count().check(Prompt("how many", target={"count": count}))


@pytest.mark.parametrize(
    ("settings", "message"), [({"kind": "near"}, "kind must be one of"), ({"tag": ""}, "tags must")]
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Count(**settings)
