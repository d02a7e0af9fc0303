"""A click hits its target, or it does not."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.parsing.actions.action import Action
from mmrl.parsing.actions.dialects import DIALECTS, DialectName
from mmrl.parsing.coordinates import Canvas, Convention
from mmrl.rewards.actions.point_in_box import PointInBox
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

Make = Callable[..., RewardBatch]
TARGET = [100, 200, 140, 220]
SCREEN = Canvas((1920, 1080), (1932, 1092), "original")


def batch(texts: list[str]) -> RewardBatch:
    return answers(texts, {"box": TARGET}, canvases=(SCREEN,) * len(texts))


def random_batch(random: random.Random) -> RewardBatch:
    clicks = [f"({random.randint(80, 160)}, {random.randint(190, 230)})" for _ in range(5)]
    return batch([*clicks, "(120, 210)", "there", "[100, 200, 140, 220]"])


EXAMPLE = Example(random_batch=random_batch, best=lambda: batch(["(120, 210)", "click [110, 205, 130, 215]"] * 2))


def judge(texts: list[str], make_batch: Make, canvas: Canvas | None = None, **settings: Any) -> Any:
    canvases = (canvas or Canvas((1920, 1080), (1932, 1092), "original"),) * len(texts)
    batch = make_batch(Outputs(texts=tuple(texts), canvases=canvases), texts, [{"box": TARGET}] * len(texts))
    return PointInBox(**settings).score(batch).tolist()


@in_one_test(
    ("text", "score"),
    [
        ("(120, 210)", 1),
        ("(100, 200)", 1),  # borders belong to the target
        ("(140, 220)", 1),
        ("(99.9, 210)", 0),
        ("(120, 220.1)", 0),
        ("(210, 120)", 0),
        ("<point>120 210</point>", 1),
        ("[0, 200, 240, 220]", 1),  # a box counts by its centre
        ("[100, 200, 104, 260]", 0),
        ("[240, 220, 0, 200]", 0),  # corners in the wrong order
        ("(120, 210), (120, 210), (120, 210)", 0),  # one answer only
        ("", 0),
        ("120 210", 0),
        ("(1e2, 210)", 0),
    ],
)
def test_hits_and_misses(text: str, score: float, make_batch: Make) -> None:
    assert judge([text], make_batch) == [score]


HOOK = ((100, 200), (140, 200), (140, 240), (120, 240), (120, 220), (100, 220))  # an L without its lower left part


@in_one_test(
    ("point", "score"),
    [
        ((110, 210), 1),
        ((130, 230), 1),
        ((110, 230), 0),  # in the box around it alone
        ((100, 200), 1),  # corners and sides belong to it
        ((120, 230), 1),
        ((110, 220), 1),
        ((99.9, 210), 0),
        ((90, 220), 0),  # a ray along a side
        ((90, 200), 0),
        ((150, 240), 0),
    ],
)
def test_a_polygon_holds_its_inside_and_its_border(point: tuple[float, float], score: float, make_batch: Make) -> None:
    outputs = Outputs(texts=(str(point),), canvases=(SCREEN,))
    for corners in (HOOK, HOOK[::-1], HOOK[3:] + HOOK[:3]):  # either way round, from any corner
        made = make_batch(outputs, ["go"], [{"polygon": [list(corner) for corner in corners]}])
        assert PointInBox(polygon=True).score(made).tolist() == [score]


@pytest.mark.slow
def test_a_polygon_agrees_with_masks_on_the_centres_of_pixels() -> None:
    """Of the even-odd rule, with triangles whose sides pass through no centre."""
    from mmrl.rewards.actions.point_in_box import holds
    from mmrl.rewards.base.masks import pixels_of, read_shape

    corners = ((3.3, 2.1), (37.7, 11.9), (12.2, 35.6))
    shape = read_shape([[side for corner in corners for side in corner]])
    true = pixels_of(shape, Canvas((40, 40), (40, 40), "original"), is_answer=False)
    assert [[holds(corners, (x + 0.5, y + 0.5)) for x in range(40)] for y in range(40)] == true.tolist()


def test_a_polygon_needs_three_corners() -> None:
    assert PointInBox(polygon=True).needs == {"texts", "canvases", "target.polygon"}
    for wrong in ([[1, 2], [3, 4]], "box", [[1, 2], [3, 4], [5]]):
        with pytest.raises(ValueError, match=r"target.polygon must be"):
            PointInBox(polygon=True).check(Prompt("go", (), {"polygon": wrong}))


def test_the_answer_stands_in_its_tag(make_batch: Make) -> None:
    assert judge(["<answer>(120, 210)</answer>", "(120, 210)"], make_batch, tag="answer") == [1, 0]
    with pytest.raises(ValueError, match="tags must be"):
        PointInBox(tag="a b")


def test_a_point_is_judged_on_the_original_image(make_batch: Make) -> None:
    half = Canvas((1920, 1080), (960, 540), "resized")
    assert judge(["(60, 105)", "(120, 210)"], make_batch, half) == [1, 0]


@pytest.mark.slow
@in_one_test("name", sorted(DIALECTS))
@in_one_test("convention", ["original", "resized", "thousand", "unit"])
@in_one_test("size", [(1920, 1080), (300, 4000), (8000, 250)])
def test_the_targets_centre_hits_in_every_dialect_and_size(
    name: DialectName, convention: Convention, size: tuple[int, int], make_batch: Make
) -> None:
    canvas = Canvas(size, (size[0] // 28 * 28, size[1] // 28 * 28), convention)
    text = DIALECTS[name].write(Action("click", point=(120, 210)), canvas)
    outputs = Outputs(texts=(text,), canvases=(canvas,), actions=(DIALECTS[name].parse(text, canvas),))
    assert PointInBox().score(make_batch(outputs, ["click"], [{"box": TARGET}])).tolist() == [1]


def test_actions_are_read_where_there_are_some(make_batch: Make) -> None:
    actions = (Action("click", point=(120, 210)), Action("move", point=(120, 210)), None, Action("wait"))
    canvases = (Canvas((1920, 1080), (28, 28), "unit"),) * 4
    outputs = Outputs(texts=("(0.0625, 0.194)",) * 4, canvases=canvases, actions=actions)
    assert PointInBox().score(make_batch(outputs, ["click"] * 4, [{"box": TARGET}] * 4)).tolist() == [1, 0, 0, 0]


@pytest.mark.slow
@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    check_scores(PointInBox(), batch(texts))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(PointInBox(), batch([*megabytes(piece), *HOSTILE]))


def test_a_target_without_area_cannot_judge() -> None:
    with pytest.raises(ValueError, match=r"target\.box must be"):
        PointInBox().check(Prompt("click", target={"box": [5, 5, 5, 9]}))
