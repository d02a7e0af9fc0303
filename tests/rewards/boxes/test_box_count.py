"""Numbers of boxes by hand, and texts that hold none."""

import random
from typing import Any

import pytest

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Canvas
from mmrl.rewards.boxes.box_count import BoxCount
from tests.rewards.example import Example, answers

CANVAS = Canvas((100, 100), (100, 100), "original")
BOXES = [[0, 0, 10, 10], [20, 20, 30, 30]]


def said(count: int) -> str:
    return f"<answer>{[{'bbox_2d': [n, 0, n + 1, 1]} for n in range(count)]}</answer>"


def batch(texts: list[str], boxes: Any = BOXES) -> RewardBatch:
    return answers(texts, {"boxes": boxes}, canvases=(CANVAS,) * len(texts))


def judge(texts: list[str], boxes: Any = BOXES, **settings: Any) -> Any:
    return BoxCount(**settings).score(batch(texts, boxes)).tolist()


EXAMPLE = Example(
    random_batch=lambda source: batch(["no", said(0), said(2), *(said(source.randint(1, 40)) for _ in range(9))]),
    best=lambda: batch([said(2)] * 4),
)


def test_counts_by_hand() -> None:
    texts = [said(2), said(1), said(4), said(0), "<answer>No Objects</answer>", "two boxes"]
    assert judge(texts) == [1, 0.5, 0.5, 0, 0, 0]
    assert judge(texts, measure="answered") == [2, 1, 4, 0, 0, 0]
    assert judge(texts, measure="true") == [2] * 6
    assert judge(texts, measure="surplus") == [0, -1, 2, -2, -2, -2]
    assert judge(texts, []) == [0, 0, 0, 1, 1, 0], "of nothing an empty list is right, and no list is none"


def test_a_repeated_box_counts_again() -> None:
    twice = "<answer>[{'bbox_2d': [0, 0, 1, 1]}, {'bbox_2d': [0, 0, 1, 1]}]</answer>"
    assert judge([twice], measure="answered") == [2]


def test_only_agreement_has_an_upper_end() -> None:
    assert BoxCount().range == (0, 1) and BoxCount(measure="answered").range == (0, float("inf"))
    assert BoxCount(measure="surplus").range == (float("-inf"), float("inf"))


def test_a_target_that_is_no_list_is_refused() -> None:
    with pytest.raises(ValueError, match=r"target\.boxes must be a list of boxes, got 3"):
        BoxCount().check(Prompt("?", target={"boxes": 3}))


def test_random_numbers_against_a_plain_loop() -> None:
    source = random.Random(0)
    for _ in range(20):
        answered, true = source.randint(0, 9), source.randint(1, 9)
        boxes = [[0, 0, 1 + n, 1] for n in range(true)]
        expected = answered / true if answered <= true else true / answered
        assert judge([said(answered)], boxes) == pytest.approx([expected])
