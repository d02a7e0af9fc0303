"""Thoughts with boxes: hand numbers, and the ways to have more of them than there are."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.rewards.boxes.grounded_boxes import MAX_BOXES, GroundedBoxes, thought_boxes
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

TARGET = {"count": 2}
ONE, TWO = "[1, 2, 30, 40]", "[50, 2, 80, 40]"


def thinking(thought: str, rethought: str = "so two") -> str:
    return f"<think>{thought}</think>\n<rethink>{rethought}</rethink>\n2"


def random_batch(rng: random.Random) -> RewardBatch:
    thoughts = [ONE, f"{ONE} {TWO}", "none", "", f"{ONE} {ONE}", f"{ONE} {TWO} [1, 1, 2, 2]"]
    texts = [thinking(rng.choice(thoughts), rng.choice(["", "two"])) for _ in range(7)]
    return answers([*texts, rng.choice([ONE, ""])], TARGET)


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers([thinking(f"a cat {ONE} and one more at {TWO}")] * 8, TARGET)
)


def judge(text: str, count: Any = 2, **settings: Any) -> float:
    return float(GroundedBoxes(**settings).score(answers([text], {"count": count})))


@in_one_test(
    ("text", "score"),  # quarters: tags 1, boxes 1, count 2
    [
        (thinking(f"{ONE}, {TWO}"), 1),
        (thinking(f'"bbox_2d": {ONE}, "bbox_2d": {TWO}'), 1),
        (thinking("1,2,30,40 then 50,2,80,40."), 1),
        (thinking("(1.5, 2, 30, 40.5) (50,2,80,40)"), 1),
        (thinking(ONE), 0.5),
        (thinking(f"{ONE} {ONE}"), 0.5),  # the same twice is one
        (thinking(f"{ONE} {ONE} {TWO}"), 1),
        (thinking(f"{ONE} {TWO} [1, 1, 2, 2]"), 0.5),
        (thinking("two cats"), 0.25),
        (thinking("[30, 40, 1, 2] [5, 5, 5, 9]"), 0.25),  # corners in the wrong order, no area
        (thinking("[1, 2, 30] [1, 2, 30, 40, 50] 1, 2"), 0.25),
        (thinking("two cats", f"{ONE} {TWO}"), 0.25),  # after the thought
        (thinking(f"{ONE} {TWO}", ""), 0.75),
        (thinking(f"{ONE} {TWO}", " \n"), 0.75),
        (thinking("", "two"), 0),
        (f"<think>{ONE} {TWO}</think> 2", 0),
        (f"<rethink>so two</rethink><think>{ONE} {TWO}</think>", 0),
        (f"<think>{ONE}</think><think>{TWO}</think><rethink>so two</rethink>", 0),
        (f"{ONE} {TWO}", 0),
        ("", 0),
    ],
)
def test_scores_by_hand(text: str, score: float) -> None:
    assert judge(text) == pytest.approx(score)


def test_where_there_is_nothing_no_box_is_right() -> None:
    assert judge(thinking("no cat"), count=0) == 1
    assert judge(thinking(f"a cat {ONE}"), count=0) == 0.5


def test_the_settings() -> None:
    text = thinking(ONE)
    assert judge(text, box_weight=0) == pytest.approx(1 / 3)
    assert judge(text, tag_weight=1, box_weight=1, count_weight=2) == 0.5
    alone = GroundedBoxes(count_weight=0)
    assert alone.needs == {"texts"} and GroundedBoxes().needs == {"texts", "target.count"}
    assert alone.score(answers([text, thinking("none")])).tolist() == [1, 0.5]
    alone.check(answers([""]).prompts[0])
    assert judge(f"<see>{ONE}</see><say>one</say>", count=1, tags=("see", "say")) == 1
    for settings, message in (
        ({"tag_weight": -1}, "must be at least 0"),
        ({"tag_weight": 0, "box_weight": 0, "count_weight": 0}, "not all 0"),
        ({"tags": ("a", "a")}, "tags must be"),
    ):
        with pytest.raises(ValueError, match=message):
            GroundedBoxes(**settings)


@given(
    st.lists(st.tuples(*[st.integers(0, 9)] * 4), max_size=6), st.sampled_from(["[{}]", "({})", "{};", '"box": [{}],'])
)
def test_the_boxes_are_those_that_were_written(boxes: list[tuple[int, ...]], style: str) -> None:
    thought = " ".join(style.format(", ".join(map(str, box))) for box in boxes)
    assert thought_boxes(thought) == {box for box in boxes if box[0] < box[2] and box[1] < box[3]}


def test_more_boxes_than_anybody_counts_are_none() -> None:
    many = " ".join(f"[0, 0, {number}, 1]" for number in range(1, MAX_BOXES + 2))
    assert judge(thinking(many), count=MAX_BOXES) == 0.25
    assert judge(thinking(many.rpartition("[")[0]), count=MAX_BOXES) == 1


def test_a_whole_number_of_a_column_of_floats_is_a_count() -> None:
    """A table with an empty cell makes floats of the others."""
    GroundedBoxes().check(answers([""], {"count": 1.0}).prompts[0])
    assert judge(thinking(ONE), 1.0) == judge(thinking(ONE), 1) == 1


@in_one_test("count", [None, True, -1, 2.5, "2", MAX_BOXES + 1, float("nan")])
def test_a_target_that_is_no_count_cannot_judge(count: Any) -> None:
    with pytest.raises(ValueError, match=r"target\.count must be a whole number from 0 to 100, got"):
        judge(thinking(ONE), count)
    with pytest.raises(ValueError, match=r"target\.count"):
        GroundedBoxes().check(answers([""], {"count": count}).prompts[0])


@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    check_scores(GroundedBoxes(), answers([text, thinking(text)], TARGET))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    check_scores(GroundedBoxes(), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_scored(piece: str) -> None:
    text = piece * (900_000 // len(piece))
    check_scores(GroundedBoxes(), answers([*megabytes(piece), thinking(text)], TARGET))
