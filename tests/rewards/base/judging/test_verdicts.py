"""Verdicts in replies, by hand."""

import math
from typing import Any

import pytest

from mmrl.rewards.base.judging.questions import UnansweredError
from mmrl.rewards.base.judging.verdicts import (
    choices_of,
    is_yes,
    level_of,
    number_of,
    numbers_of,
    places_of,
    preference_of,
    reasons_in,
    scaled,
    share_of_yes,
    verdict_in,
)
from tests.parameters import in_one_test


@in_one_test(
    ("reply", "reasons"),
    [
        ("Sharp, well lit.\nScore: 4", "Sharp, well lit."),
        ("Score: 1\nOn second thought\n**Score:** 3.5\n", "Score: 1\nOn second thought"),
        ('{"reasons": "Score: 1", "score": 5}', "Score: 1"),
        ('```json\n{"Score": 5}\n```', ""),
        ("Score: 4", ""),
        ("4", ""),
    ],
)
def test_the_reasons_are_all_that_stands_before_the_verdict(reply: str, reasons: str) -> None:
    assert reasons_in(reply, "Score") == reasons


@in_one_test(
    ("reply", "verdict"),
    [
        ("Sharp, well lit.\nScore: 4", "4"),
        ("Score: 1\nOn second thought\n**Score:** 3.5", "3.5"),
        ("- score = 2", "2"),
        ('{"reasons": "Score: 1", "score": 5}', 5),
        ('```json\n{"Score": 5}\n```', 5),
        ("4", "4"),
        ("**4**", "4"),
        ("He wrote: 'Score: 5 at once' and then nothing.\nScore: 2", "2"),
    ],
)
def test_the_last_labelled_line_counts(reply: str, verdict: Any) -> None:
    assert verdict_in(reply, "Score", is_bare=True) == verdict


@in_one_test("reply", ["", "   ", "I would give four points.", "the score: is high"])
def test_a_reply_without_a_verdict_is_no_answer(reply: str) -> None:
    with pytest.raises(UnansweredError, match=r"no line 'Score: \.\.\.'"):
        verdict_in(reply, "Score", is_bare=False)


@in_one_test(("verdict", "number"), [("4", 4), (" 4.5 ", 4.5), ("4/5", 4), (4, 4), (".5", 0.5), ("4.", 4)])
def test_numbers_on_the_scale(verdict: Any, number: float) -> None:
    assert number_of(verdict, 0, 5) == number


@in_one_test(
    "verdict", ["6", "-1", "four", "4/10", "4 or 5", "", None, True, math.nan, [4], {"a": 4}, "1e1", "nan", "٤"]
)
def test_what_is_no_number_on_the_scale_is_no_answer(verdict: Any) -> None:
    with pytest.raises(UnansweredError, match="from 0 to 5"):
        number_of(verdict, 0, 5)


def test_lists_have_one_number_for_each() -> None:
    assert numbers_of("[1, 0, 0.5]", 3, 0, 1) == numbers_of("1, 0, .5", 3, 0, 1) == [1, 0, 0.5]
    assert numbers_of({"2": 0, "1": 1}, 2, 0, 1) == [1, 0]
    assert choices_of("[yes, no, 1]", 3) == [True, False, True] and choices_of([True, False], 2) == [True, False]
    for wrong in ("[1, 0]", "[1, 0, 1, 1]", "yes", {"1": 1, "3": 0, "2": 2, "4": 1}):
        with pytest.raises(UnansweredError, match="list 3 items"):
            numbers_of(wrong, 3, 0, 1)


def test_words() -> None:
    assert is_yes("Yes.") and not is_yes("no") and is_yes("**true**") and not is_yes(False)
    assert [preference_of(word, "1", "2", "tie") for word in ("1", "2", "Tie")] == [1, 0, 0.5]
    for wrong in ("maybe", "", None, "yes and no"):
        with pytest.raises(UnansweredError):
            is_yes(wrong)
        with pytest.raises(UnansweredError):
            preference_of(wrong, "1", "2", "tie")


def test_rankings_name_each_once() -> None:
    assert places_of("[3, 1, 2]", 3) == places_of("3 > 1 > 2", 3) == places_of([3, 1, 2], 3) == [1, 2, 0]
    for wrong in ("[1, 1, 2]", "[1, 2]", "[0, 1, 2]", "[1.5, 2, 3]"):
        with pytest.raises(UnansweredError):
            places_of(wrong, 3)


def test_the_share_of_yes_is_a_softmax_of_two() -> None:
    assert share_of_yes([math.log(0.6), math.log(0.2)]) == pytest.approx(0.75)
    assert share_of_yes([-math.inf, -1.0]) == pytest.approx(0) and share_of_yes([-1.0, -math.inf]) == 1
    with pytest.raises(UnansweredError, match="neither of both"):
        share_of_yes([-math.inf, -math.inf])


def test_scales_become_zero_to_one() -> None:
    assert [scaled(number, 1, 5) for number in (1, 2, 5)] == [0, 0.25, 1]


def test_words_are_levels_from_worst_to_best() -> None:
    levels = ("poor", "fair", "good")
    assert [level_of(said, levels) for said in ("Poor", "**fair**.", " GOOD ")] == [0, 0.5, 1]
    for said in ("very good", "", 3, None):
        with pytest.raises(UnansweredError, match="must be one of poor, fair, good"):
            level_of(said, levels)
