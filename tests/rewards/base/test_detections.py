"""Lists of detections and of boxes as models write them."""

import json
from typing import Any

import pytest

from mmrl.core.plugins import build
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Canvas
from mmrl.rewards.base.boxes import are_new
from mmrl.rewards.base.detections import MAX_DETECTIONS, DetectedBox, read_boxes, read_detections
from tests.rewards.example import answers

CANVAS = Canvas((100, 100), (100, 100), "original")


def test_detections_as_models_write_them() -> None:
    one = DetectedBox((0.0, 0.0, 10.0, 10.0), 0.5)
    for text in (
        "[{'Position': [0, 0, 10, 10], 'Confidence': 0.5}]",
        '[{"Position": [0, 0, 10, 10], "Confidence": 0.50}]',
        "```json\n[{'Position': [0, 0, 10, 10], 'Confidence': .5}]\n```".replace(".5", "0.5"),
        "{'Position': [0, 0, 10, 10], 'confidence': 0.5}",
    ):
        assert read_detections(text, None, CANVAS) == [one]
    said = read_detections('[{"bbox_2d": [0, 0, 10, 10], "label": "it\'s", "more": null}]', None, CANVAS)
    assert said == [DetectedBox((0.0, 0.0, 10.0, 10.0), 1.0, "it's")]


@pytest.mark.timeout(60)
def test_long_answers_are_read_up_to_a_limit() -> None:
    one = "{'Position': [0, 0, 1, 1], 'Confidence': 1}"
    assert len(read_detections(f"[{', '.join([one] * MAX_DETECTIONS)}]", None, CANVAS)) == MAX_DETECTIONS
    for text in (f"[{', '.join([one] * (MAX_DETECTIONS + 1))}]", one * 20_000, "[{'" * 300_000, "'" * 1_000_000):
        with pytest.raises(ParseError):
            read_detections(text, None, CANVAS)


def test_boxes_may_be_plain_lists() -> None:
    one, two = (0.0, 0.0, 10.0, 10.0), (5.0, 5.0, 1.0, 1.0)
    for text in ("[[0, 0, 10, 10], [5, 5, 1, 1]]", "[{'bbox_2d': [0, 0, 10, 10]}, [5, 5, 1, 1]]"):
        assert read_boxes(text, None, CANVAS) == [one, two]
    for text in ("[0, 0, 10, 10]", "{'Position': [0, 0, 10, 10]}"):
        assert read_boxes(text, None, CANVAS) == [one]
    assert read_boxes("<answer>[]</answer>", "answer", CANVAS) == read_boxes("No objects.", None, CANVAS) == []
    half = Canvas((100, 100), (50, 50), "resized")
    assert read_boxes("[[0, 0, 10, 10]]", None, half) == [(0.0, 0.0, 20.0, 20.0)]
    for text in ("[0, 0, 10]", "[[0, 0, 10, null]]", "[[[0, 0, 10, 10]]]", "[0, 0, 10, true]", "3", "(0, 0), (10, 10)"):
        with pytest.raises(ParseError):
            read_boxes(text, None, CANVAS)


KINDS = ("visual_rft", "vision_r1", "map", "map50", "map_length")
GUARDED = {"name": "detection", "form": "guarded", "labels": True}
LISTS = [{"name": "box_iou", "many": True}, *(GUARDED | {"kind": kind} for kind in KINDS)]


def judge(said: Any, truth: Any, reward: dict[str, Any]) -> float:
    """`said` and `truth` are pairs of a box and its label."""
    found = [{"bbox_2d": list(box), "label": label} for box, label in said]
    target = {"boxes": [box for box, _ in truth], "labels": [label for _, label in truth]}
    made = answers([f"<answer>{json.dumps(found)}</answer>"], target, canvases=(CANVAS,))
    return float(build("rewards", reward).score(made))


@pytest.mark.parametrize("reward", LISTS, ids=str)
def test_a_place_with_two_true_boxes_may_be_written_twice(reward: dict[str, Any]) -> None:
    """A man and his shirt: a truth that scores less than the most teaches to leave one of them out."""
    man, shirt, far = ((10, 10, 20, 20), "man"), ((10, 10, 20, 20), "shirt"), ((80, 80, 90, 90), "hat")
    truth = [man, shirt, far]
    assert judge(truth, truth, reward) == pytest.approx(1)
    assert judge([man, far], truth, reward) < 1
    assert judge([*truth, shirt], truth, reward) < 1
    assert judge([man, man], [man], reward) < judge([man], [man], reward)


@pytest.mark.parametrize("reward", LISTS, ids=str)
def test_a_crowd_can_be_answered_in_full(reward: dict[str, Any]) -> None:
    crowd = [((n % 30 * 3, n // 30 * 3, n % 30 * 3 + 2, n // 30 * 3 + 2), "head") for n in range(MAX_DETECTIONS + 1)]
    assert judge(crowd, crowd, reward) == pytest.approx(1)
    assert judge([*crowd, crowd[0]], crowd, reward) == 0


def test_what_is_new_of_the_boxes_answered() -> None:
    one, two = (0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 2.0, 2.0)
    assert are_new([one, two, one], []) == are_new([one, two, one], [two, one]) == [True, True, False]
    assert are_new([one, two, one, one], [one, one, two]) == [True, True, True, False]


def test_labels_are_compared_composed() -> None:
    reward = {"name": "detection", "labels": True}
    box = (0, 0, 10, 10)
    for label, other in (("caf\u00e9", "cafe\u0301"), ("cafe\u0301", "CAF\u00c9"), ("cafe\u0301", "cafe\u0301")):
        assert judge([(box, label)], [(box, other)], reward) == 1
    assert judge([(box, "cafe")], [(box, "cafe\u0301")], reward) == 0
    assert judge([(box, "e" + 31 * "\u0301")], [(box, "e")], reward) == 0
    with pytest.raises(ValueError, match="30 accents"):
        judge([(box, "e")], [(box, "e" + 31 * "\u0301")], reward)
