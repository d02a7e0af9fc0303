"""GenEval's rules on objects made by hand: numbers, colours, places, and the scenes that targets may ask for."""

from collections.abc import Sequence
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Box
from mmrl.rewards.base.scenes import DetectedObject, Scene, graded_parts, is_correct, read_scene, relations, same_name
from tests.parameters import in_one_test

LEFT, RIGHT, TOP, BOTTOM = (0, 40, 20, 60), (80, 40, 100, 60), (40, 0, 60, 20), (40, 80, 60, 100)


def at(*boxes: Box) -> list[DetectedObject]:
    """Objects in these boxes, the first the surest."""
    return [DetectedObject(box, 0.99 - 0.01 * number) for number, box in enumerate(boxes)]


def scene(*include: dict[str, Any], exclude: Sequence[dict[str, Any]] = (), **other: Any) -> Scene:
    target = {"include": list(include), "exclude": list(exclude), **other}
    return read_scene(Prompt("a photo", target=target), most=16)


def palette(**colors: list[str]) -> Any:
    """Colours of the objects of each class, in their order."""
    return lambda found, name: colors[name][: len(found)]


def grade(objects: Any, wanted: Scene, **colors: list[str]) -> list[float]:
    return graded_parts(objects, wanted, palette(**colors), 0.1)


@in_one_test(
    ("box", "other", "expected"),
    [
        (LEFT, RIGHT, {"left of"}),
        (RIGHT, LEFT, {"right of"}),
        (TOP, BOTTOM, {"above"}),
        (BOTTOM, TOP, {"below"}),
        ((0, 0, 10, 10), (50, 50, 60, 60), {"left of", "above"}),  # 48 of 71 in both directions
        (LEFT, LEFT, set()),
        ((0, 0, 100, 100), (15, 0, 115, 100), set()),  # 15 apart, 20 are needed
        ((0, 0, 100, 100), (25, 0, 125, 100), set()),  # 5 beyond, which is not more than half of 25
        ((0, 0, 100, 100), (45, 0, 145, 100), {"left of"}),  # 25 beyond of 45
        ((0, 0, 10, 10), (30, 100, 40, 110), {"above"}),  # 28 of 104 to the left
    ],
)
def test_hand_made_places(box: Box, other: Box, expected: set[str]) -> None:
    assert relations(box, other, 0.1) == expected


SIDES = st.integers(0, 60)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    x, y = draw(SIDES), draw(SIDES)
    return x, y, x + draw(st.integers(1, 60)), y + draw(st.integers(1, 60))


@given(boxes(), boxes(), st.sampled_from([0.0, 0.1, 0.3]))
def test_places_are_those_of_the_paper(box: Box, other: Box, margin: float) -> None:
    """The formula in vectors: what is beyond the margin, over the distance, above one half."""
    left, right = numpy.array(box).reshape(2, 2), numpy.array(other).reshape(2, 2)
    offset = left.mean(0) - right.mean(0)
    sizes = numpy.diff(left, axis=0)[0] + numpy.diff(right, axis=0)[0]
    beyond = numpy.sign(offset) * numpy.maximum(numpy.abs(offset) - margin * sizes, 0)
    expected = set()
    if (numpy.abs(beyond) >= 1e-3).any():
        x, y = beyond / numpy.linalg.norm(offset)
        signs = {"left of": x < -0.5, "right of": x > 0.5, "above": y < -0.5, "below": y > 0.5}
        expected = {name for name, holds in signs.items() if holds}
    assert relations(box, other, margin) == expected


@given(boxes(), boxes())
def test_places_turn_around_with_the_objects(box: Box, other: Box) -> None:
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    assert {opposite[one] for one in relations(box, other, 0.1)} == relations(other, box, 0.1)


@in_one_test(
    ("num_found", "graded", "correct"),
    [(0, 0.0, False), (1, 1 / 3, False), (3, 1.0, True), (4, 2 / 3, True), (7, 0.0, True)],
)
def test_numbers(num_found: int, graded: float, correct: bool) -> None:
    wanted = scene({"class": "dog", "count": 3})
    objects = {"dog": at(*[LEFT] * num_found)}
    assert grade(objects, wanted) == pytest.approx([graded])
    assert is_correct(objects, wanted, palette(), 0.1) is correct


def test_too_many_are_excluded() -> None:
    wanted = scene({"class": "dog", "count": 3}, exclude=[{"class": "dog", "count": 4}], tag="counting")
    assert not is_correct({"dog": at(*[LEFT] * 4)}, wanted, palette(), 0.1)
    assert is_correct({"dog": at(*[LEFT] * 3)}, wanted, palette(), 0.1)
    assert grade({"dog": at(*[LEFT] * 3)}, wanted) == [1.0], "the exact number says it already"


def test_another_class_that_is_excluded_is_a_part() -> None:
    wanted = scene({"class": "dog", "count": 1}, exclude=[{"class": "cat", "count": 1}])
    assert grade({"dog": at(LEFT)}, wanted) == [1.0, 1.0]
    assert grade({"dog": at(LEFT), "cat": at(RIGHT)}, wanted) == [1.0, 0.0]
    assert not is_correct({"dog": at(LEFT), "cat": at(RIGHT)}, wanted, palette(), 0.1)


def test_colours() -> None:
    wanted = scene({"class": "dog", "count": 2, "color": "red"})
    two, three = {"dog": at(LEFT, RIGHT)}, {"dog": at(LEFT, RIGHT, TOP)}
    assert grade(two, wanted, dog=["red", "red"]) == [1.0, 1.0]
    assert grade(two, wanted, dog=["red", "blue"]) == [1.0, 0.5]
    assert grade(two, wanted, dog=["blue", "blue"]) == [1.0, 0.0]
    assert grade(three, wanted) == [0.5, 0.0], "nobody asks for colours where the number is wrong"
    assert is_correct(three, wanted, palette(dog=["red", "red", "blue"]), 0.1), "the surest two are red"
    assert not is_correct(three, wanted, palette(dog=["red", "blue", "red"]), 0.1)


POSED = ({"class": "dog", "count": 1}, {"class": "cat", "count": 1, "position": ["left of", 0]})


def test_places_count_once() -> None:
    wanted = scene(*POSED)
    assert grade({"dog": at(RIGHT), "cat": at(LEFT)}, wanted) == [1.0, 1.0, 1.0]
    # flow_grpo's reward server appends a 0 and then a 1 here: (1 + 1 + 0 + 1) / 4
    assert grade({"dog": at(LEFT), "cat": at(RIGHT)}, wanted) == [1.0, 1.0, 0.0]
    assert grade({"cat": at(LEFT)}, wanted) == [0.0, 1.0, 0.0], "there is nothing to be left of"
    assert grade({"dog": at(RIGHT)}, wanted) == [1.0, 0.0, 0.0]
    assert is_correct({"dog": at(RIGHT, LEFT), "cat": at(LEFT, RIGHT)}, wanted, palette(), 0.1), "of the surest"
    assert not is_correct({"dog": at(LEFT), "cat": at(RIGHT)}, wanted, palette(), 0.1)
    assert not is_correct({"cat": at(LEFT)}, wanted, palette(), 0.1)


def test_every_object_must_be_in_its_place() -> None:
    wanted = scene({"class": "dog", "count": 2}, {"class": "cat", "count": 1, "position": ["below", 0]})
    assert grade({"dog": at(TOP, (30, 0, 50, 20)), "cat": at(BOTTOM)}, wanted) == [1.0, 1.0, 1.0]
    assert grade({"dog": at(TOP, (30, 90, 50, 110)), "cat": at(BOTTOM)}, wanted) == [1.0, 1.0, 0.0]


def test_the_other_clause_must_be_fulfilled_and_so_must_the_own_colour() -> None:
    wanted = scene(
        {"class": "dog", "count": 1, "color": "red"},
        {"class": "cat", "count": 1, "color": "blue", "position": ["left of", 0]},
    )
    objects = {"dog": at(RIGHT), "cat": at(LEFT)}
    assert grade(objects, wanted, dog=["red"], cat=["blue"]) == [1.0] * 5
    assert grade(objects, wanted, dog=["pink"], cat=["blue"]) == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert grade(objects, wanted, dog=["red"], cat=["pink"]) == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert is_correct(objects, wanted, palette(dog=["red"], cat=["blue"]), 0.1)
    assert not is_correct(objects, wanted, palette(dog=["pink"], cat=["blue"]), 0.1)


def test_classes_are_the_same_however_they_are_written() -> None:
    pairs = [("dining table", "diningtable"), ("tv", "tvmonitor"), ("Couch", "sofa"), ("computer mouse", "mouse")]
    for left, right in [*pairs, ("tv remote", "remote"), ("computer keyboard", "keyboard"), ("airplane", "aeroplane")]:
        assert same_name(left) == same_name(right)
    assert same_name("hot dog") != same_name("dog")
    assert grade({"diningtable": at(LEFT)}, scene({"class": "dining table", "count": 1})) == [1.0]


@in_one_test(
    ("target", "is_counting"),
    [
        ({"include": [{"class": "dog", "count": 1}]}, False),
        ({"include": [{"class": "dog", "count": 2}]}, True),
        ({"include": [{"class": "dog", "count": 2}], "tag": "colors"}, False),
        ({"include": [{"class": "dog", "count": 1}], "tag": "counting"}, True),
    ],
)
def test_what_counts_is_said_by_the_tag_or_the_numbers(target: dict[str, Any], is_counting: bool) -> None:
    assert read_scene(Prompt("a", target=target), 16).is_counting is is_counting


def test_a_scene_whose_entries_were_columns_is_read() -> None:
    entries = [
        {"class": "dog", "count": 1, "color": None, "position": None},
        {"class": "cat", "count": 1, "color": "red", "position": ["above", "0"]},  # a list of texts
    ]
    found = read_scene(Prompt("a", target={"include": entries, "exclude": None, "tag": "position"}), 16)
    assert found.include[1].position == ("above", 0) and found.include[0].position is None and found.exclude == ()


DOG = {"class": "dog", "count": 1}


@in_one_test(
    ("target", "message"),
    [
        ({"include": []}, "target.include must be a list of objects, at least one, each class once"),
        ({"include": "dog"}, r"target.include must be a list of \{class, count, color, position\}; got 'dog' for 'a'"),
        ({"include": ["dog"]}, r"a list of \{class, count, color, position\}, and nothing else"),
        ({"include": [{**DOG, "colour": "red"}]}, "and nothing else"),
        ({"include": [{"count": 1}]}, "every entry names a class"),
        ({"include": [{"class": "dog"}]}, "counts are whole numbers from 1 to 16"),
        ({"include": [{"class": "dog", "count": 0}]}, "counts are whole numbers"),
        ({"include": [{"class": "dog", "count": 17}]}, "counts are whole numbers"),
        ({"include": [{"class": "dog", "count": 1.5}]}, "counts are whole numbers"),
        ({"include": [{"class": "dog", "count": True}]}, "counts are whole numbers"),
        ({"include": [{**DOG, "color": "mauve"}]}, "colors are of red, orange"),
        ({"include": [DOG, DOG]}, "each class once"),
        ({"include": [{"class": "tv", "count": 1}, {"class": "TV monitor", "count": 1}]}, "each class once"),
        ({"include": [{**DOG, "position": ["left of", 0]}]}, "number of an earlier entry"),
        ({"include": [DOG, {"class": "cat", "count": 1, "position": ["near", 0]}]}, "relation of left of"),
        ({"include": [DOG, {"class": "cat", "count": 1, "position": ["above", -1]}]}, "number of an earlier entry"),
        ({"include": [DOG, {"class": "cat", "count": 1, "position": "above"}]}, "number of an earlier entry"),
        ({"include": [DOG], "exclude": [DOG]}, "target.exclude must be fewer than 1 'dog', which include asks for"),
        ({"include": [DOG], "exclude": [{"class": "cat", "count": 1, "color": "red"}]}, "class and count only"),
        ({"include": [DOG], "exclude": "cat"}, "target.exclude must be a list"),
    ],
)
def test_a_target_that_no_image_could_fulfil_is_refused(target: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_scene(Prompt("a", target=target), 16)
