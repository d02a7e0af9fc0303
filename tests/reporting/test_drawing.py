"""What is drawn on the image of a question: the right places, seen on any ground, whatever a model wrote."""

import json
import math
from typing import Any

import pytest
from PIL import Image

from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from mmrl.reporting.drawing import (
    LARGEST,
    PREDICTED,
    SMALLEST,
    TRUE,
    Marks,
    action_marks,
    answer_marks,
    render,
    true_marks,
)
from tests.parameters import in_one_test

GREY = (128, 128, 128)
CANVAS = Canvas((200, 100), (100, 100), "resized")


def image(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), GREY)


def coloured(drawn: Image.Image, colour: tuple[int, int, int]) -> tuple[int, int, int, int] | None:
    """The area of an image that its pixels of `colour` lie in: left, top, right and bottom, the last two exclusive."""
    mask = Image.new("L", drawn.size)
    mask.putdata([255 * (pixel == colour) for pixel in drawn.get_flattened_data()])
    return mask.getbbox()


def without_legend(drawn: Image.Image, original: Image.Image) -> Image.Image:
    width, height = original.size
    return drawn.crop((0, 0, drawn.width, round(drawn.width * height / width)))


def test_a_target_s_box_boxes_and_point_are_read_and_other_shapes_left_out() -> None:
    target = {"box": [1, 2, 3, 4], "boxes": [(5, 6, 7, 8.5), [1, 2], "box"], "point": (9, 10), "answer": "red"}
    assert true_marks(target) == Marks(boxes=((1, 2, 3, 4), (5, 6, 7, 8.5)), points=((9, 10),))


@in_one_test(
    "value", [None, "1234", [1, 2, 3], [1, 2, 3, "4"], [1, 2, 3, math.nan], [1, 2, 3, 10**400], [True] * 4, {}, 5]
)
def test_what_is_no_box_is_not_drawn(value: Any) -> None:
    assert not true_marks({"box": value, "point": value, "boxes": value})
    assert not true_marks({"boxes": [value]})


def test_an_action_is_its_point_its_box_and_the_way_of_its_drag() -> None:
    assert action_marks(Action("click", point=(2.0, 2.0), box=(1.0, 1.0, 3.0, 3.0))) == Marks(
        ((1.0, 1.0, 3.0, 3.0),), ((2.0, 2.0),)
    )
    assert action_marks(Action("drag", point=(1.0, 2.0), end=(3.0, 4.0))).paths == (((1.0, 2.0), (3.0, 4.0)),)
    assert action_marks(Action("drag", end=(3.0, 4.0))) == Marks(points=((3.0, 4.0),))
    assert not action_marks(Action("type", text="(1, 2)"))


@in_one_test(
    ("text", "marks"),
    [
        ("[10, 20]", Marks(points=((20, 20),))),
        ('{"bbox_2d": [10, 20, 30, 40], "label": "cat"}', Marks(boxes=((20, 20, 60, 40),))),
        ("<think>not (1, 2)</think><answer>(10, 20)</answer>", Marks(points=((20, 20),))),
        ("<answer>(10, 20)</answer><answer>(3, 4)</answer>", Marks()),
        ("[1, 2] or [3, 4]", Marks()),
        ("a red button", Marks()),
        ("", Marks()),
    ],
)
def test_an_answer_s_only_place_is_put_into_pixels_of_the_original(text: str, marks: Marks) -> None:
    assert answer_marks(text, CANVAS) == marks  # x is twice as wide in the original
    assert not answer_marks(text, None)


@pytest.mark.slow
@in_one_test(
    ("size", "drawn"),
    [
        ((64, 64), (320, 320)),
        ((100, 30), (300, 90)),
        ((160, 161), (160, 161)),
        ((1, 1), (320, 320)),
        ((1024, 700), (1024, 700)),
        ((1920, 1080), (1024, 576)),
        ((8000, 50), (1024, 6)),
        ((3, 8000), (1, 1024)),
    ],
)
def test_small_images_grow_by_whole_factors_and_large_ones_shrink(
    size: tuple[int, int], drawn: tuple[int, int]
) -> None:
    shown = render(image(*size), Marks(), Marks())
    assert shown.size == drawn
    assert max(drawn) <= LARGEST and (max(size) > SMALLEST // 2 or max(drawn) > SMALLEST // 2)
    marked = render(image(*size), Marks(points=((0.5, 0.5),)), Marks())
    assert marked.width >= drawn[0] and marked.height > drawn[1], "the legend stands below"


def test_growing_keeps_every_pixel() -> None:
    small = image(64, 64)
    small.putpixel((3, 2), (1, 2, 3))
    drawn = render(small, Marks(), Marks())
    assert coloured(drawn, (1, 2, 3)) == (15, 10, 20, 15)  # 5 times


@pytest.mark.parametrize("is_true", [True, False])
@pytest.mark.parametrize("box", [(8.0, 16.0, 32.0, 48.0), (32.0, 48.0, 8.0, 16.0)])
def test_a_box_is_drawn_around_what_it_holds(is_true: bool, box: tuple[float, float, float, float]) -> None:
    marks, original = Marks(boxes=(box,)), image(64, 64)
    drawn = without_legend(render(original, *((marks, Marks()) if is_true else (Marks(), marks))), original)
    found = coloured(drawn, TRUE.colour if is_true else PREDICTED.colour)
    assert found == pytest.approx((40, 80, 160, 240), abs=4)  # 5 times, 3 pixels thick, outside
    inside = drawn.crop((42, 82, 158, 238))
    assert set(inside.get_flattened_data()) == {GREY}


@pytest.mark.parametrize(("is_true", "hole"), [(True, GREY), (False, PREDICTED.colour)])
def test_a_true_point_is_a_ring_and_a_predicted_one_a_cross(is_true: bool, hole: tuple[int, int, int]) -> None:
    marks, original = Marks(points=((16.0, 40.0),)), image(64, 64)
    drawn = without_legend(render(original, *((marks, Marks()) if is_true else (Marks(), marks))), original)
    left, top, right, bottom = coloured(drawn, TRUE.colour if is_true else PREDICTED.colour) or (0, 0, 0, 0)
    assert ((left + right) / 2, (top + bottom) / 2) == pytest.approx((80, 200), abs=1.5)
    assert drawn.getpixel((80, 200)) == hole


def test_predicted_boxes_are_dashed_and_both_have_a_light_rim() -> None:
    box, original = Marks(boxes=((8.0, 8.0, 56.0, 56.0),)), image(64, 64)
    true, predicted = render(original, box, Marks()), render(original, Marks(), box)
    above = [[drawn.getpixel((x, 38)) for x in range(45, 275)] for drawn in (true, predicted)]
    assert set(above[0]) == {TRUE.colour}
    assert set(above[1]) == {PREDICTED.colour, GREY}
    assert true.getpixel((160, 36)) == (255, 255, 255) == true.getpixel((160, 40))


def test_marks_shrink_with_their_image() -> None:
    original = image(300, 2400)  # 128 x 1024 when drawn, lines 6 pixels thick
    drawn = render(original, Marks(boxes=((75.0, 1200.0, 225.0, 1800.0),)), Marks())
    assert coloured(drawn.crop((0, 0, 128, 1024)), TRUE.colour) == pytest.approx((32, 512, 96, 768), abs=7)


def legend_width(true: Marks, predicted: Marks) -> int:
    drawn = render(image(64, 64), true, predicted)
    strip = drawn.crop((0, 320, drawn.width, drawn.height))
    box = coloured(strip.point(lambda value: 255 if value > 200 else 0), (0, 0, 0))
    return 0 if box is None else box[2]


def test_the_legend_names_what_is_there_what_is_missing_and_what_is_outside() -> None:
    inside, outside = Marks(points=((1.0, 1.0),)), Marks(points=((99.0, 1.0),))
    both = legend_width(inside, inside)
    assert legend_width(inside, Marks()) > legend_width(Marks(), inside) > 0, "`predicted: none` beside `true`"
    assert legend_width(inside, outside) > both
    overlapping = Marks(boxes=((-9.0, -9.0, 1.0, 1.0),))
    assert legend_width(inside, overlapping) < legend_width(inside, Marks(boxes=((-9.0, -9.0, -1.0, 1.0),)))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("value", [1e300, -1e300, math.inf, math.nan, 10.0**9])
def test_absurd_numbers_do_not_hang_the_drawing(value: float) -> None:
    box, path = (0.0, value, 10.0, 5.0), ((0.0, 0.0), (value, value))
    render(image(64, 64), Marks(), Marks((box,), ((value, 3.0),), (path,)))


def test_a_side_that_is_far_outside_leaves_the_others_where_they_are() -> None:
    original = image(64, 64)
    drawn = without_legend(render(original, Marks(boxes=((8.0, 8.0, 1e12, 56.0),)), Marks()), original)
    assert coloured(drawn, TRUE.colour) == pytest.approx((40, 40, 320, 280), abs=4)


def test_the_image_itself_is_not_changed() -> None:
    original = image(320, 320)
    render(original, Marks(boxes=((1.0, 1.0, 9.0, 9.0),)), Marks(points=((5.0, 5.0),)))
    assert set(original.get_flattened_data()) == {GREY}


def test_targets_come_as_json_has_them() -> None:
    assert true_marks(json.loads('{"box": [1, 2, 3.5, 4]}')).boxes == ((1.0, 2.0, 3.5, 4.0),)
