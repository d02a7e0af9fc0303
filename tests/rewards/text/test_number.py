"""Numbers near and far, against hand numbers and the formulas in floating point."""

import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.parsing.answers import ParseError
from mmrl.rewards.base.references import MAX_LETTERS
from mmrl.rewards.text.number import Number, read_number
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

TARGET = {"answer": 1234.5}


def random_batch(rng: random.Random) -> RewardBatch:
    texts = [f"{1234.5 * rng.choice([1, 1.02, 1.3, 2, -1]):.2f}" for _ in range(6)] + ["1,234.5", "many"]
    return answers([f"<answer>{text}</answer>" for text in texts], TARGET)


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: answers(["<answer>1234.5</answer>", "<answer>1,234.50</answer>"] * 4, TARGET),
)


def judge(text: str, target: Any, **settings: Any) -> float:
    return float(Number(**({"tag": None} | settings)).score(answers([text], {"answer": target})))


@in_one_test(
    ("text", "number"),
    [
        *(("3", 3), ("3.0", 3), ("3.", 3), ("+3", 3), ("-3", -3), ("\u22123", -3), ("-0", 0), (".5", 0.5), ("007", 7)),
        *(("1,234", 1234), ("1,234,567.5", 1234567.5), ("-12,000", -12000), ("9" * 30, int("9" * 30))),
        *(
            (text, None)
            for text in ("", "1,23", "1,2345", "12,34", "1 2", "1/2", "1e5", "NaN", "Infinity", "--3", "3-", "1.2.3")
        ),
        *(
            (text, None)
            for text in (
                "\u0661",
                "\uff13",
                "²",
                "1_000",
                "0x1",
                "9" * 31,
                "three",
                "3 cm",
                "$3",
                "5%",
                "3 or 4",
                ",",
                ".",
            )
        ),
    ],
)
def test_what_is_a_number(text: str, number: float | None) -> None:
    if number is None:
        with pytest.raises(ParseError, match="not one number"):
            read_number(text, ignore_units=False)
    else:
        assert read_number(text, ignore_units=False) == Fraction(str(number))
        assert read_number(text, ignore_units=True) == Fraction(str(number))


@in_one_test(
    ("text", "number"),
    [
        *(("10 cm", 10), ("10cm", 10), ("10 m/s", 10), ("10 m2", 10), ("10 m^2", 10), ("10 m²", 10), ("10 sq. km", 10)),
        *(("5%", 5), ("5 %", 5), ("$5", 5), ("$ 1,200.50", 1200.5), ("-$5", -5), ("5 €", 5), ("90°", 90), ("6'", 6)),
        *(
            (text, None)
            for text in ("10 cm 5", "10 or 12", "3 or 2", "1e3", "1E-2", "5 = 5", "5, 6", "about 5", "10 " + "m" * 30)
        ),
    ],
)
def test_units_are_left_out_where_they_are_ignored(text: str, number: float | None) -> None:
    if number is None:
        with pytest.raises(ParseError):
            read_number(text, ignore_units=True)
    else:
        assert read_number(text, ignore_units=True) == Fraction(str(number))
        with pytest.raises(ParseError):
            read_number(text, ignore_units=False)


@in_one_test(
    ("text", "target", "relaxed", "linear", "mean"),
    [
        ("100", 100, 1, 1, 1),
        ("105", 100, 1, 0.95, 0.9),  # e = 0.05 is not below 1 - 0.95
        ("104.99", 100, 1, 0.9501, 1),
        ("1.05", 1, 1, 0.95, 0.9),  # in floats 1.05 - 1 is above 0.05
        ("105.1", 100, 0, 0.949, 0.9),
        ("70", 100, 0, 0.7, 0.4),  # e = 0.3 is below 0.5, 0.45, 0.4, 0.35
        ("50", 100, 0, 0.5, 0),
        ("49", 100, 0, 0.49, 0),
        ("250", 100, 0, 0, 0),
        ("-100", 100, 0, 0, 0),
        ("-100", -100, 1, 1, 1),
        ("-96", "-100", 1, 0.96, 1),
        ("0", 0, 1, 1, 1),
        ("0.0", "0", 1, 1, 1),
        ("-0", 0.0, 1, 1, 1),
        ("0.0000001", 0, 0, 0, 0),
        ("1,000", "1000", 1, 1, 1),
        ("none", 5, 0, 0, 0),
        ("5 6", 5, 0, 0, 0),
        ("9" * 30, 1e-300, 0, 0, 0),
        ("0", 1e300, 0, 0, 0),
    ],
)
def test_scores_by_hand(text: str, target: Any, relaxed: float, linear: float, mean: float) -> None:
    assert judge(text, target) == relaxed
    assert judge(text, target, kind="linear") == pytest.approx(linear)
    assert judge(text, target, kind="mean") == pytest.approx(mean)


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
def test_the_formulas_in_floats_agree_away_from_their_steps(said: int, right: int) -> None:
    assume(right != 0)
    error = abs(said - right) / abs(right)
    steps = [1 - (0.5 + 0.05 * n) for n in range(10)]
    assume(all(abs(error - step) > 1e-9 for step in steps))
    text, target = str(said / 100), right / 100
    assert judge(text, target) == (error <= 0.05)
    assert judge(text, target, kind="linear") == pytest.approx(1 - min(1, error), abs=1e-6)
    assert judge(text, target, kind="mean") == pytest.approx(sum(error < step for step in steps) / 10)


def test_the_settings() -> None:
    assert judge("103", 100, tolerance=0.02) == 0 and judge("102", 100, tolerance=0.02) == 1
    assert judge("100.0", 100, tolerance=0) == 1 and judge("100.1", 100, tolerance=0) == 0
    assert judge("10 cm", 10) == 0 and judge("10 cm", 10, ignore_units=True) == 1
    assert judge("10", "10 cm", ignore_units=True) == 1
    assert judge("<think>4</think><answer> 10 </answer>", 10, tag="answer") == 1
    assert judge("<answer>10</answer><answer>10</answer>", 10, tag="answer") == 0
    assert judge(r"it is \boxed{10}", 10, boxed=True) == 1


@in_one_test("settings", [{"kind": "soft"}, {"tolerance": -0.1}, {"tolerance": float("nan")}, {"tag": "<answer>"}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Number(**settings)


@in_one_test("target", [None, True, "", "many", "10 cm", float("nan"), float("inf"), [1], "1 2"])
def test_a_target_that_is_no_number_cannot_judge(target: Any) -> None:
    with pytest.raises(ValueError, match=r"target\.answer must be a number, or the text of one, got"):
        judge("1", target)
    with pytest.raises(ValueError, match=r"target\.answer must be a number"):
        Number().check(answers([""], {"answer": target}).prompts[0])


@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    for tag in (None, "answer"):
        check_scores(Number(tag=tag, kind="linear", ignore_units=True), answers([text], TARGET))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    for units in (False, True):
        check_scores(Number(ignore_units=units), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_no_number(piece: str) -> None:
    check_scores(Number(ignore_units=True), answers(megabytes(piece), TARGET))
    text = (piece * 20_000)[: MAX_LETTERS - 100]  # as long as answers may be
    check_scores(Number(ignore_units=True, tag=None), answers([text, f"5{text}", f"$5 {text}"], TARGET))
