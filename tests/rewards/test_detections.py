"""Lists of detections and of boxes as models write them."""

import pytest

from mmrl.answers import ParseError
from mmrl.coordinates import Canvas
from mmrl.rewards._detections import MAX_DETECTIONS, DetectedBox, read_boxes, read_detections

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
