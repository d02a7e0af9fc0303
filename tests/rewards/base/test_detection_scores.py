"""The rules of Vision-R1 by hand and by its own assignment; average precision against pycocotools."""

import contextlib
import io
import json
import random
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Canvas
from mmrl.rewards.base.detection_scores import average_precision
from mmrl.rewards.boxes.detection import Detection
from tests.parameters import in_one_test
from tests.rewards.example import answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

CANVAS = Canvas((100, 100), (100, 100), "original")
KINDS = ("visual_rft", "vision_r1", "map", "map50", "map_length")
FIRST, SECOND, FAR = [0, 0, 10, 10], [50, 50, 70, 60], [80, 80, 90, 90]
Detections = list[dict[str, Any]]


def detections(*boxes: Any, confidences: Any = (), labels: Any = ()) -> Detections:
    listed: Detections = [{"bbox_2d": list(box)} for box in boxes]
    for one, confidence in zip(listed, confidences, strict=False):
        one["confidence"] = confidence
    for one, label in zip(listed, labels, strict=False):
        one["label"] = label
    return listed


def judge(
    said: str | Detections, truth: Any = (FIRST, SECOND), labels: Any = None, *, iteration: int = 0, **how: Any
) -> float:
    text = said if isinstance(said, str) else f"<answer>{json.dumps(said)}</answer>"
    target = {"boxes": [list(box) for box in truth]} | ({} if labels is None else {"labels": labels})
    batch = answers([text], target, canvases=(CANVAS,))
    return float(Detection(labels=labels is not None, **how).score(replace(batch, iteration=iteration)))


def covering(share: float) -> list[float]:
    """A box whose IoU with FIRST is this share."""
    return [0, 0, 10, 10 * share]


@in_one_test(
    ("said", "recall", "precision", "strict_recall", "strict_precision"),
    [
        ([FIRST, SECOND], 1, 1, 1, 1),
        ([covering(0.6), SECOND], 1, (0.6 + 1) / 2, 0.5, 1 / 2),
        ([covering(0.8), SECOND], 1, 1, 1, (0.8 + 1) / 2),
        ([covering(0.75), SECOND], 1, (0.75 + 1) / 2, 1, (0.75 + 1) / 2),
        ([covering(0.95), SECOND], 1, 1, 1, 1),
        ([covering(0.45), SECOND], 0.5, 1 / 2, 0.5, 1 / 2),
        ([FIRST], 0.5, 1, 0.5, 1),
        ([FIRST, FAR], 0.5, 1 / 2, 0.5, 1 / 2),  # their first code divides by the pairs of their matching
        ([FIRST, SECOND, FAR, FAR], 1, 2 / 4, 1, 2 / 4),
        ([FIRST, FIRST], 0.5, 1 / 2, 0.5, 1 / 2),
        ([FAR], 0, 0, 0, 0),
        ([], 0, 0, 0, 0),
    ],
)
def test_vision_r1_by_hand(
    said: Any, recall: float, precision: float, strict_recall: float, strict_precision: float
) -> None:
    answer = detections(*said)
    for iteration, total in ((1499, recall + precision), (1500, strict_recall + strict_precision)):
        assert judge(answer, kind="vision_r1", iteration=iteration) == pytest.approx((1 + total) / 3)
        assert judge(answer, kind="vision_r1", iteration=iteration, format_weight=0) == pytest.approx(total / 2)


def test_recall_is_stretched_between_its_ends() -> None:
    """4 of 5 are above 0.75 and count as all, 2 of 5 are below 0.5 and count as none, 3 of 5 are 0.6."""
    truth = [[20 * n, 0, 20 * n + 10, 10] for n in range(5)]
    for count, recall in ((5, 1), (4, 1), (3, 0.6), (2, 0)):
        assert judge(detections(*truth[:count]), truth, kind="vision_r1", format_weight=0) == pytest.approx(
            (recall + 1) / 2
        )


def test_the_stage_is_the_settings_and_the_iterations() -> None:
    said = detections(covering(0.6))
    scores = [judge(said, [FIRST], kind="vision_r1", iteration=n, strict_from=3, format_weight=0) for n in (0, 2, 3, 9)]
    assert scores == pytest.approx([0.8, 0.8, 0, 0])
    assert judge(said, [FIRST], kind="vision_r1", iteration=10**6, strict_from=None, format_weight=0) == pytest.approx(
        0.8
    )


def test_no_objects_and_no_list() -> None:
    for kind in KINDS:
        assert judge("<answer>No Objects</answer>", [], kind=kind) == judge([], [], kind=kind) == 1
        assert (
            judge(detections(FIRST), [], kind=kind)
            == judge("<answer>two</answer>", kind=kind)
            == judge("", kind=kind)
            == 0
        )
        assert judge([], kind=kind) == pytest.approx(1 / 3 if kind == "vision_r1" else 0)


def coco(said: Detections, truth: Any, labels: Any = None) -> list[float]:
    """What pycocotools says of one image: AP over IoUs, and at 0.5."""
    names = sorted(set(labels or ["thing"]))

    def entry(number: int, box: Any, label: str, **more: Any) -> dict[str, Any]:
        x1, y1, x2, y2 = box
        sized = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
        return {"id": number + 1, "image_id": 0, "category_id": names.index(label)} | sized | more

    true = COCO()
    kinds = [{"id": number, "name": name} for number, name in enumerate(names)]
    listed = [entry(n, box, labels[n] if labels else "thing") for n, box in enumerate(truth)]
    true.dataset = {"info": {}, "images": [{"id": 0}], "categories": kinds, "annotations": listed}
    with contextlib.redirect_stdout(io.StringIO()):
        true.createIndex()
        answered = true.loadRes(
            [
                entry(n, one["bbox_2d"], one.get("label", "thing"), score=one.get("confidence", 1.0))
                for n, one in enumerate(said)
            ]
        )
        judged = COCOeval(true, answered, "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return [float(judged.stats[0]), float(judged.stats[1])]


@st.composite
def near_boxes(draw: st.DrawFn) -> list[int]:
    """Boxes that often overlap one another by more than a half."""
    x1, y1 = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    return [x1, y1, x1 + draw(st.integers(3, 9)), y1 + draw(st.integers(3, 9))]


ANSWERS = st.lists(near_boxes(), min_size=1, max_size=7, unique_by=tuple)
TRUTHS = st.lists(near_boxes(), min_size=1, max_size=5, unique_by=tuple)
LABELS = st.sampled_from(["cat", "dog"])


@pytest.mark.slow  # most of a second each, or more
@settings(max_examples=60, deadline=None)
@given(ANSWERS, TRUTHS, st.randoms(use_true_random=False))
def test_average_precision_is_that_of_pycocotools(said: Any, truth: Any, dice: random.Random) -> None:
    sure = [confidence / 10 for confidence in dice.sample(range(1, 11), len(said))]
    answer = detections(*said, confidences=sure)
    expected, expected_50 = coco(answer, truth)
    assert judge(answer, truth, kind="map") == pytest.approx(expected, abs=1e-6)
    assert judge(answer, truth, kind="map50") == pytest.approx(expected_50, abs=1e-6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(ANSWERS, TRUTHS)
def test_map_length_is_vlm_r1s(said: Any, truth: Any) -> None:
    """All confidences are 1 and count in their order, as pycocotools sorts them."""
    expected = coco(detections(*said), truth)[0] * min(1, len(truth) / len(said))
    assert judge(detections(*said), truth, kind="map_length") == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(near_boxes(), LABELS), min_size=1, max_size=6, unique_by=lambda one: tuple(one[0])), st.data()
)
def test_labels_are_averaged_as_by_pycocotools(said: Any, data: st.DataObject) -> None:
    labels = [label for _, label in said]
    truth = data.draw(st.lists(near_boxes(), min_size=len(labels), max_size=len(labels)))
    sure = [1 - n / 10 for n in range(len(said))]
    answer = detections(*(box for box, _ in said), confidences=sure, labels=labels)
    assert judge(answer, truth, labels, kind="map") == pytest.approx(coco(answer, truth, labels)[0], abs=1e-6)


def test_wrong_boxes_behind_a_right_one_are_not_free() -> None:
    """VLM-R1's and COCO's order of equal confidences pays them in full."""
    said = detections(FIRST, *([20 + n, 20, 30 + n, 30] for n in range(9)))
    assert coco(said, [FIRST])[0] == pytest.approx(1)
    assert judge(said, [FIRST], kind="map") == pytest.approx(0.1)
    assert judge(said, [FIRST], kind="map_length") == pytest.approx(0.1)


def test_guesses_of_small_confidence_are_free_but_for_their_number() -> None:
    said = detections(FIRST, *([20 + n, 20, 30 + n, 30] for n in range(9)), confidences=[0.9, *[0.1] * 9])
    assert judge(said, [FIRST], kind="map") == 1
    assert judge(said, [FIRST], kind="map_length") == pytest.approx(0.1)


def test_of_equally_sure_boxes_the_one_that_fits_best_is_first() -> None:
    """Both fit the second truth, which is the only one for the first of them."""
    truth, said = [FIRST, covering(0.6)], [covering(0.6), covering(0.72)]  # IoU 0.6 and 1; 0.72 and 0.6 / 0.72
    assert judge(detections(*said), truth, kind="map") == pytest.approx(0.5 + 0.5 * 0.5 * 51 / 101)


def test_a_label_that_is_not_in_the_truth_lowers_the_mean() -> None:
    """VLM-R1's code leaves such boxes out."""
    truth, labels = [FIRST, SECOND], ["cat", "dog"]
    right = detections(FIRST, SECOND, labels=labels)
    assert judge(right, truth, labels, kind="map") == 1
    for label in ("hen", None):
        wrong = [*right, *detections(FAR, labels=[label] if label else [])]
        assert judge(wrong, truth, labels, kind="map") == pytest.approx(2 / 3)
        assert judge(wrong, truth, labels, kind="map_length") == pytest.approx(2 / 3 * 2 / 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(said=ANSWERS, truth=TRUTHS, data=st.data())
def test_what_never_pays(kind: str, said: Any, truth: Any, data: st.DataObject) -> None:
    sure = data.draw(st.lists(st.sampled_from([0.2, 0.5, 1.0]), min_size=len(said), max_size=len(said)))
    answer = detections(*said, confidences=sure)
    score = judge(answer, truth, kind=kind, form="guarded")
    assert 0 <= score <= 1
    again = dict(data.draw(st.sampled_from(answer)), confidence=data.draw(st.sampled_from([0.1, 0.5, 1.0])))
    assert judge([*answer, again], truth, kind=kind, form="guarded") <= score + 1e-6, "a box written again"
    assert judge([*answer, *detections(FAR, confidences=[0.5])], truth, kind=kind, form="guarded") <= score + 1e-6, (
        "a box of nothing"
    )
    if kind != "map_length":
        assert judge(data.draw(st.permutations(answer)), truth, kind=kind, form="guarded") == pytest.approx(
            score, abs=1e-6
        ), "the order"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(truth=st.lists(near_boxes(), min_size=1, max_size=5, unique_by=tuple))
def test_the_truth_scores_the_most(kind: str, truth: Any) -> None:
    assert judge(detections(*truth), truth, kind=kind, iteration=9999) == pytest.approx(1)


@given(st.lists(st.lists(st.sampled_from([0, 0.4, 0.6, 0.8]), min_size=3, max_size=3), min_size=1, max_size=3))
def test_the_pairs_of_vision_r1_are_the_best_assignment(overlaps: list[list[float]]) -> None:
    """Boxes are laid out so that each overlaps one truth; the best assignment is found by trying all."""
    truth = [[20 * n, 0, 20 * n + 10, 10] for n in range(3)]
    said = [[20 * n, 0, 20 * n + 10, 10 * row[n]] for n, row in enumerate(overlaps) if row[n]]
    values = np.array([[row[n] if n == m else 0 for m in range(3)] for n, row in enumerate(overlaps) if row[n]])
    if not said:
        return
    best = max(permutations(range(3), len(said)), key=lambda order: sum(values[n, m] for n, m in enumerate(order)))
    worth = [values[n, m] for n, m in enumerate(best)]
    precision = sum(1 if one > 0.75 else one if one >= 0.5 else 0 for one in worth) / len(said)
    share = sum(one >= 0.5 for one in worth) / 3
    recall = 0 if share < 0.5 else 1 if share > 0.75 else share
    expected = (precision + recall) / 2
    assert judge(detections(*said), truth, kind="vision_r1", format_weight=0) == pytest.approx(expected, abs=1e-6)


def test_average_precision_by_hand() -> None:
    # by falling confidence: right, wrong, right; precisions 1, 1/2, 2/3 at recalls 1/2, 1/2, 1
    overlap = torch.tensor([[0.9, 0.0], [0.0, 0.0], [0.0, 0.7]], dtype=torch.float64)
    sure = torch.tensor([0.9, 0.8, 0.7], dtype=torch.float64)
    assert average_precision(overlap, sure, (0.5,), is_ordered=False) == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert average_precision(overlap, sure, (0.8,), is_ordered=False) == pytest.approx(51 / 101)
    equal = torch.ones(3, dtype=torch.float64)
    assert average_precision(overlap, equal, (0.5,), is_ordered=False) == pytest.approx(2 / 3)
    assert average_precision(overlap[:0], sure[:0], (0.5,), is_ordered=False) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_any_text_has_a_score(kind: Any, texts: list[str]) -> None:
    check_scores(Detection(kind=kind), answers(texts, {"boxes": [FIRST]}, canvases=(CANVAS,) * len(texts)))


@in_one_test("kind", KINDS)
def test_hostile_texts_have_a_score(kind: Any) -> None:
    check_scores(Detection(kind=kind), answers(HOSTILE, {"boxes": [FIRST]}, canvases=(CANVAS,) * len(HOSTILE)))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(Detection(kind="map", tag=None), answers(megabytes(piece), {"boxes": [FIRST]}, canvases=(CANVAS,) * 3))


def test_settings_of_the_kinds_are_checked() -> None:
    for how, message in (
        ({"kind": "ap"}, "kind must be one of visual_rft, vision_r1, map, map50, map_length, got 'ap'"),
        ({"format_weight": -1}, "format_weight must be at least 0, got -1"),
        ({"strict_from": -1}, "strict_from must be at least 0, or null, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            Detection(**how)
    assert "target.labels" in Detection(labels=True).needs and "target.labels" not in Detection().needs
    with pytest.raises(ValueError, match=r"target\.labels must be 1 texts"):
        Detection(labels=True).check(Prompt("find", target={"boxes": [FIRST], "labels": []}))
