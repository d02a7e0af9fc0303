"""Key frames of a clip with spans of time under them."""

from typing import Any

import pytest
from PIL import Image

from mmrl.core.data import Outputs, Prompt
from mmrl.parsing.answers import Span
from mmrl.reporting.drawing import PREDICTED, TRUE
from mmrl.reporting.timeline import CELL, GAP, LINE, answer_spans, answered, timeline, true_spans
from mmrl.training.held_out import answered as answered_prompt
from tests.clips import clip
from tests.parameters import in_one_test

FRAMES = [(float(second), Image.new("RGB", (64, 48), (second, 0, 0))) for second in range(8)]
HEIGHT = 48 * CELL // 64


def bar(image: Image.Image, row: int, colour: tuple[int, int, int]) -> tuple[int, int]:
    """The first and the last column of the bar in one of the two rows."""
    line = HEIGHT + LINE + 2 * LINE * row + LINE + 4
    found = [x for x in range(image.width) if image.getpixel((x, line)) == colour]
    return found[0], found[-1]


@in_one_test(
    ("span", "first", "last"), [((1, 3), 1.0, 3.0), ((3, 1), 1.0, 3.0), ((0.5, 7), 0.5, 7.0), ((2, 1e11), 2.0, 7.5)]
)
def test_spans_lie_under_the_frames_that_they_cover(span: Span, first: float, last: float) -> None:
    image = timeline(FRAMES, [span], [(1.0, 2.0)])
    left, right = bar(image, 0, TRUE.colour)
    assert left == pytest.approx(CELL / 2 + first * (CELL + GAP), abs=1.5)
    assert right == pytest.approx(min(CELL / 2 + last * (CELL + GAP), image.width - 1), abs=1.5)
    assert bar(image, 1, PREDICTED.colour)[0] == pytest.approx(CELL / 2 + CELL + GAP, abs=1.5)


def test_frames_stand_side_by_side_with_their_seconds() -> None:
    image = timeline(FRAMES)
    assert image.size == (8 * CELL + 7 * GAP, HEIGHT + LINE)
    assert [image.getpixel((number * (CELL + GAP) + 5, 5)) for number in range(8)] == [(n, 0, 0) for n in range(8)]


@in_one_test(
    ("target", "expected"),
    [({"span": [1, 2.5]}, ((1.0, 2.5),)), ({"spans": [[1, 2], (3, 4)], "span": [0, 1]}, ((0, 1), (1, 2), (3, 4))),
     ({}, ()), ({"span": "12"}, ()), ({"span": [1]}, ()), ({"span": [1, "x"]}, ()), ({"span": [True, 2]}, ()),
     ({"span": [0, float("inf")], "spans": "ab"}, ()), ({"spans": 3}, ())],
)  # fmt: skip
def test_spans_of_a_target(target: dict[str, Any], expected: tuple[Span, ...]) -> None:
    assert true_spans(target) == expected


def test_spans_of_an_answer() -> None:
    assert answer_spans("1 to 2 <answer>3 to 4</answer> 5 to 6") == ((3.0, 4.0),)
    assert answer_spans("from 1 to 2") == ((1.0, 2.0),)
    assert answer_spans("never") == answer_spans(None) == ()


@pytest.mark.slow
def test_a_clip_is_drawn_with_spans_only_where_its_target_has_some() -> None:
    plain, told = answered(clip(20), {}, "1 to 2"), answered(clip(20), {"span": [0.5, 1.0]}, "no idea")
    assert (told.width, told.height) == (plain.width, plain.height + 4 * LINE)
    assert bar(told, 0, TRUE.colour)[0] > CELL
    with pytest.raises(IndexError):
        bar(told, 1, PREDICTED.colour)


@pytest.mark.slow
def test_a_saved_sample_of_a_prompt_with_a_clip_is_its_time_line() -> None:
    asked = Prompt("when?", clips=(clip(20),), target={"span": [0.5, 1.0]})
    image = answered_prompt(asked, Outputs(texts=("0 to 1", "0.5 to 1.0")), 1)
    expected = answered(clip(20), {"span": [0.5, 1.0]}, "0.5 to 1.0")
    assert image is not None and image.tobytes() == expected.tobytes()
