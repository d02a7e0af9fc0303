"""Distances of clicks by hand, on every scale, and what is no click."""

import random
from math import sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas, Convention, format_point
from mmrl.rewards.actions.click_distance import ClickDistance
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

SCREEN = Canvas((200, 100), (224, 112), "original")
BOX = {"box": [90, 40, 110, 60]}  # its centre is that of the screen


def batch(texts: list[str], truth: Any = BOX, canvas: Canvas | None = SCREEN, **outputs: Any) -> RewardBatch:
    return answers(texts, truth, canvases=(canvas,) * len(texts), **outputs)


def judge(texts: list[str], truth: Any = BOX, canvas: Canvas | None = SCREEN, **settings: Any) -> Any:
    return ClickDistance(**settings).score(batch(texts, truth, canvas)).tolist()


def random_batch(random: random.Random) -> RewardBatch:
    clicks = [f"({random.randint(-20, 220)}, {random.randint(-20, 120)})" for _ in range(4)]
    return batch(["somewhere", "(100, 50)", "[90, 40, 112, 60]", "(0, 0)", *clicks])


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: batch(["(100, 50)", "click (100, 50)", "[90, 40, 110, 60]", "[99, 49, 101, 51]"]),
)


def test_scores_by_hand() -> None:
    # a quarter of the width, then half of the height; d_max^2 is 1/4 + 1/4
    texts = ["(100, 50)", "(150, 50)", "(100, 0)", "(200, 100)", "(0, 0)", "(100, 300)", "none", "(1, 2) (3, 4)"]
    assert judge(texts) == pytest.approx([1, 1 - 1 / 8, 1 / 2, 0, 0, 0, 0, 0], abs=1e-6)
    assert judge(["(150, 50)"], power=1) == pytest.approx([1 - sqrt(1 / 8)])
    assert judge(["(150, 50)", "(110, 50)"], reach=0.1) == pytest.approx([0, 1 - 0.25])


def test_the_target_can_be_a_point() -> None:
    assert judge(["(0, 0)", "(200, 100)", "(100, 50)"], {"point": [0, 0]}, target="point") == pytest.approx(
        [1, 0, 0.75]
    )
    assert ClickDistance(target="point").needs == {"texts", "canvases", "target.point"}


@pytest.mark.slow  # most of a second each, or more
@given(st.floats(0, 200), st.floats(0, 100), st.floats(0, 200), st.floats(0, 100))
def test_the_farthest_corner_is_the_farthest_point(x: float, y: float, other_x: float, other_y: float) -> None:
    """SE-GUI's d_max by trying all four corners."""
    spread = max(((x - a) / 200) ** 2 + ((y - b) / 100) ** 2 for a in (0, 200) for b in (0, 100))
    apart = ((x - other_x) / 200) ** 2 + ((y - other_y) / 100) ** 2
    action = Action("click", point=(other_x, other_y))
    scores = ClickDistance(target="point").score(batch(["no"], {"point": [x, y]}, actions=(action,)))
    assert scores.tolist() == pytest.approx([1 - apart / spread], abs=1e-6)


@in_one_test("convention", ["original", "resized", "thousand", "unit"])
def test_the_unit_of_the_answer_does_not_matter(convention: Convention) -> None:
    canvas = Canvas((2000, 1000), (1988, 1008), convention)
    scores = judge([f"({format_point((500, 250), canvas)})"], {"box": [900, 400, 1100, 600]}, canvas)
    assert scores == pytest.approx([1 - 1 / 4], abs=1e-3)


def test_actions_are_read_where_there_are_some() -> None:
    actions = (Action("click", point=(100, 50)), Action("wait"), None, Action("long_press", point=(100, 0)))
    assert ClickDistance().score(batch(["(100, 50)"] * 4, actions=actions)).tolist() == pytest.approx([1, 0, 0, 0.5])


@pytest.mark.slow  # most of a second each, or more
@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    check_scores(ClickDistance(), batch(texts))
    check_scores(ClickDistance(tag="answer"), batch(texts))


def test_hostile_texts_have_a_score() -> None:
    check_scores(ClickDistance(), batch(list(HOSTILE)))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(ClickDistance(), batch(list(megabytes(piece))))


@pytest.mark.parametrize(
    ("settings", "truth", "message"),
    [
        ({}, {"box": [5, 5, 5, 9]}, r"target\.box must be"),
        ({"target": "point"}, {"point": [5]}, r"target\.point must be \[x, y\]"),
        ({"target": "point"}, {"point": [5, float("inf")]}, r"target\.point must be \[x, y\]"),
    ],
)
def test_targets_that_cannot_judge(settings: dict[str, Any], truth: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judge(["(1, 2)"], truth, **settings)
    with pytest.raises(ValueError, match=message):
        ClickDistance(**settings).check(Prompt("where", target=truth))


def test_without_an_image_nothing_can_be_judged() -> None:
    with pytest.raises(ValueError, match="has no image that coordinates could be of"):
        judge(["(1, 2)"], canvas=None)


@in_one_test(
    ("settings", "message"),
    [
        ({"target": "centre"}, "target must be one of box, point, got 'centre'"),
        ({"power": 0}, "power must be above 0, got 0"),
        ({"reach": -1}, "reach must be above 0, or null, got -1"),
        ({"tag": "a b"}, "tags must be"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClickDistance(**settings)
