"""Judges that give the best of several answers the highest number."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.rewards.text.best_scored import BestScored
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

TARGET = {"answer": "2", "count": 3}


def judge(said: str, answer: Any = "2", count: Any = 3, **settings: Any) -> float:
    batch = answers([f"<answer>{said}</answer>"], {"answer": answer, "count": count})
    found: float = BestScored(**settings).score(batch).item()
    return found


def random_batch(random: random.Random) -> RewardBatch:
    said = [str([random.randint(1, 10) for _ in range(random.choice((2, 3, 3)))]) for _ in range(6)]
    return answers([*(f"<answer>{one}</answer>" for one in said), "no numbers", "<answer>[1, 9, 2]</answer>"], TARGET)


EXAMPLE = Example(random_batch=random_batch, best=lambda: answers(["<answer>[3, 8, 5]</answer>"] * 4, TARGET))


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("[3, 8, 5]", 1),
        ("3 8 5", 1),
        ("[3, 7.5, 7.25]", 1),
        ("[1, 2, 1]", 1),
        ("[8, 8, 5]", -1),  # not alone
        ("[9, 8, 5]", -1),
        ("[3, 8, 9]", -1),
        ("[3, 8]", -1),  # one answer has no number
        ("[3, 8, 5, 1]", -1),
        ("[0, 8, 5]", -1),  # not on the scale
        ("[3, 11, 5]", -1),
        ("the second", -1),
        ("[3, 8, 5] or [9, 8, 5]", -1),
        ("", -1),
    ],
)
def test_scores_by_hand(said: str, score: float) -> None:
    assert judge(said) == score


def test_a_single_answer_has_a_right_number() -> None:
    assert judge("[0]", "0", 1) == judge("1", 1, 1) == 1
    assert judge("[1]", "0", 1) == judge("0 0", "0", 1) == judge("no", "0", 1) == -1


def test_another_scale_and_another_best() -> None:
    assert judge("[0.2, 0.1, 0.9]", 3, scale=(0, 1)) == 1 and judge("[0.2, 0.1, 1.9]", 3, scale=(0, 1)) == -1
    assert judge("[9, 8]", 1, 2) == 1 and judge("[8, 9]", "1", 2) == -1


@given(numbers=st.lists(st.integers(1, 10), min_size=2, max_size=5), data=st.data())
def test_it_is_the_place_of_the_one_highest_number(numbers: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(numbers)))
    ordered = sorted(numbers, reverse=True)
    is_right = numbers[place - 1] == ordered[0] > ordered[1]
    assert judge(str(numbers), str(place), len(numbers)) == (1 if is_right else -1)


@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    check_scores(BestScored(), answers(texts, TARGET))
    check_scores(BestScored(tag=None), answers(texts, TARGET))


def test_hostile_texts_have_a_score() -> None:
    check_scores(BestScored(tag=None), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(BestScored(tag=None), answers(megabytes(piece), TARGET))


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ("4", 3),
        ("0", 3),
        ("1.5", 3),
        ("first", 3),
        ("1", 0),
        ("1", "2"),
        ("1 2", 2),
        (None, 2),
        ("yes", 1),
        ("1", True),
    ],
)
def test_targets_that_cannot_judge(answer: Any, count: Any) -> None:
    with pytest.raises(ValueError, match=r"target\.answer must be the place of the best of target\.count answers"):
        BestScored().check(Prompt("?", target={"answer": answer, "count": count}))


def test_a_scale_upside_down_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scale must be \[lowest, highest\], got \[10.0, 1.0\]"):
        BestScored(scale=(10.0, 1.0))
