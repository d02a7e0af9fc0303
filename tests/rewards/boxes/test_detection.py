"""Detections against hand numbers, counted pixels and all assignments; what must never pay; what is no list."""

import json
import math
import random
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Canvas
from mmrl.rewards.base.boxes import box_overlaps, pairs_by_confidence, pairs_by_overlap
from mmrl.rewards.base.detections import read_detections
from mmrl.rewards.boxes.detection import Detection
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers

Make = Callable[..., RewardBatch]
Box = tuple[int, int, int, int]
Answer = list[tuple[Box, float]]
CANVAS = Canvas((100, 100), (100, 100), "original")


def listed(answer: Answer) -> str:
    found = [{"Position": list(box), "Confidence": confidence} for box, confidence in answer]
    return f"<think>so</think><answer>{found}</answer>"  # Python's way, in single quotes


def judge(text: str | Answer, boxes: Any, make_batch: Make, names: Any = None, **settings: Any) -> float:
    written = text if isinstance(text, str) else listed(text)
    canvas = settings.pop("canvas", CANVAS)
    target = {"boxes": boxes} | ({} if names is None else {"labels": names})
    batch = make_batch(Outputs(texts=(written,), canvases=(canvas,)), ["find them"], [target])
    return float(Detection(**settings).score(batch))


FIRST, SECOND, HALF = (0, 0, 10, 10), (50, 50, 70, 60), (0, 0, 10, 6)  # HALF covers 0.6 of FIRST


def batch(texts: list[str]) -> RewardBatch:
    return answers(texts, {"boxes": [FIRST, SECOND]}, canvases=(CANVAS,) * len(texts))


def random_batch(random: random.Random) -> RewardBatch:
    some = [(FIRST, random.random()), (SECOND, random.random()), (HALF, random.random()), ((80, 80, 90, 90), 0.5)]
    picked = [listed(random.sample(some, random.randint(1, 4))) for _ in range(6)]
    return batch([*picked, listed([(FIRST, 1.0), (SECOND, 0.9)]), random.choice(["none", listed([])])])


EXAMPLE = Example(random_batch=random_batch, best=lambda: batch([listed([(SECOND, 1.0), (FIRST, 1.0)])] * 4))


@in_one_test(
    ("answer", "overlap", "confidence"),
    [
        ([(FIRST, 1.0), (SECOND, 1.0)], 1.0, 1.0),
        ([(SECOND, 0.5), (FIRST, 0.7)], 1.0, 0.6),
        ([(HALF, 0.8)], 0.6 / 2, 0.8 / 2),
        ([(FIRST, 0.9), ((20, 20, 30, 30), 0.3)], 1 / 2, (0.9 - 0.3) / 2),
        ([(FIRST, 0.2), ((20, 20, 30, 30), 0.9)], 1 / 2, 0.0),
        ([(HALF, 0.9), (FIRST, 0.4)], 0.6 / 2, (0.9 - 0.4) / 2),  # the surer one takes the only true box near
        ([(FIRST, 0.9), (SECOND, 0.9), (FIRST, 0.9)], 2 / 3, (1.8 - 0.9) / 3),
        ([((0, 0, 10, 5), 0.9)], 0.0, 0.0),  # an IoU of exactly 0.5 is not above it
        ([((10, 10, 0, 0), 0.9)], 0.0, 0.0),
        ([], 0.0, 0.0),
    ],
)
def test_both_guarded_parts_by_hand(answer: Answer, overlap: float, confidence: float, make_batch: Make) -> None:
    for first, second in ((1, 0), (0, 1), (1, 1), (3, 1)):
        weights = {"overlap_weight": first, "confidence_weight": second}
        expected = (first * overlap + second * confidence) / (first + second)
        assert judge(answer, [FIRST, SECOND], make_batch, form="guarded", **weights) == pytest.approx(expected)


@in_one_test(
    ("answer", "overlap", "confidence"),
    [
        ([(FIRST, 1.0), (SECOND, 1.0)], 1.0, 1.0),
        ([(HALF, 0.8)], 0.6 / 2, 0.8),  # the missed truth costs overlap alone
        ([(FIRST, 0.9), ((20, 20, 30, 30), 0.3)], 1 / 2, (0.9 + 0.7) / 2),
        ([(HALF, 0.9), (FIRST, 0.4)], 0.6 / 2, (0.9 + 0.6) / 2),
        ([((0, 0, 10, 5), 0.9)], 0.0, 0.1),  # an IoU of exactly 0.5 is no match
        ([(FIRST, 0.9), (SECOND, 0.9), (FIRST, 0.1)], 1.0, 0.9),  # the box that is written again is left out
        ([(FIRST, 0.1), (FIRST, 0.9)], 1 / 2, 0.1),  # with the confidence that it was written with first
        ([], 0.0, 0.0),
    ],
)
def test_both_parts_of_the_paper_by_hand(answer: Answer, overlap: float, confidence: float, make_batch: Make) -> None:
    assert judge(answer, [FIRST, SECOND], make_batch, confidence_weight=0) == pytest.approx(overlap)
    assert judge(answer, [FIRST, SECOND], make_batch, overlap_weight=0) == pytest.approx(confidence)


def test_the_slope_in_each_confidence_is_the_same_in_both_forms(make_batch: Make) -> None:
    """With n >= m they differ by a constant."""

    def difference(c: float, d: float) -> float:
        answer = [(FIRST, c), ((20, 20, 30, 30), d)]
        paper, guarded = (judge(answer, [FIRST], make_batch, overlap_weight=0, form=f) for f in ("paper", "guarded"))
        return paper - guarded

    assert difference(0.7, 0.2) == pytest.approx(difference(0.9, 0.2)) == pytest.approx(difference(0.9, 0.6)) == 0.5


def test_no_objects(make_batch: Make) -> None:
    for text in ("<answer>No Objects</answer>", "<answer> no objects. </answer>", "<answer>[]</answer>"):
        assert judge(text, [], make_batch) == 1
        assert judge(text, [FIRST], make_batch) == 0
    assert judge([(FIRST, 0.0)], [], make_batch) == 0


def test_a_matching_by_overlap_finds_what_confidence_misses(make_batch: Make) -> None:
    """Both answers fit the first truth; only one of them fits the second."""
    truth = [(0, 0, 10, 10), (0, 0, 10, 6)]  # IoU of the two: 0.6
    answer = [((0, 0, 10, 6), 0.5), ((0, 0, 10, 7), 0.9)]  # 7: IoU 0.7 with the first, 6/7 with the second
    assert judge(answer, truth, make_batch, confidence_weight=0) == pytest.approx((6 / 7 + 0.6) / 2)
    best = judge(answer, truth, make_batch, confidence_weight=0, matching="hungarian")
    assert best == pytest.approx((1 + 0.7) / 2)


@st.composite
def boxes(random_batch: st.DrawFn) -> Box:
    x1, y1 = random_batch(st.integers(0, 8)), random_batch(st.integers(0, 8))
    return x1, y1, x1 + random_batch(st.integers(1, 8)), y1 + random_batch(st.integers(1, 8))


def pixels(box: Box) -> set[tuple[int, int]]:
    return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}


def iou(one: Box, other: Box) -> float:
    return len(pixels(one) & pixels(other)) / len(pixels(one) | pixels(other))


CONFIDENCES = st.integers(0, 100).map(lambda c: c / 100)
ANSWERS = st.lists(st.tuples(boxes(), CONFIDENCES), max_size=5, unique_by=lambda one: one[0])
TRUTHS = st.lists(boxes(), min_size=1, max_size=4, unique=True)


@pytest.mark.slow
@given(ANSWERS, TRUTHS)
def test_the_best_matching_is_that_of_all_assignments(answer: Answer, truth: list[Box]) -> None:
    found = torch.tensor([box for box, _ in answer], dtype=torch.float64).view(-1, 4)
    overlap = box_overlaps(found, torch.tensor(truth, dtype=torch.float64))
    counted = [[iou(one, other) for other in truth] for one, _ in answer]
    torch.testing.assert_close(overlap, torch.tensor(counted, dtype=torch.float64).view(overlap.shape))
    overlap = torch.where(overlap > 0.5, overlap, 0.0)
    columns = [*range(len(truth)), *[None] * len(answer)]
    best = max(
        sum(float(overlap[row, column]) for row, column in enumerate(chosen) if column is not None)
        for chosen in set(permutations(columns, len(answer)))
    )
    assert sum(float(overlap[pair]) for pair in pairs_by_overlap(overlap)) == pytest.approx(best)


@pytest.mark.slow
@given(ANSWERS, TRUTHS)
def test_the_matching_by_confidence_is_that_of_a_plain_loop(answer: Answer, truth: list[Box]) -> None:
    ranked = sorted(range(len(answer)), key=lambda n: (-answer[n][1], -max(iou(answer[n][0], t) for t in truth)))
    free, pairs = set(range(len(truth))), set()
    for row in ranked:
        fits = [(iou(answer[row][0], truth[column]), -column) for column in free]
        if fits and max(fits)[0] > 0.5:
            pairs.add((row, -max(fits)[1]))
            free.remove(-max(fits)[1])
    found = torch.tensor([box for box, _ in answer], dtype=torch.float64).view(-1, 4)
    overlap = box_overlaps(found, torch.tensor(truth, dtype=torch.float64))
    overlap = torch.where(overlap > 0.5, overlap, 0.0)
    assert set(pairs_by_confidence(overlap, torch.tensor([c for _, c in answer]))) == pairs


@pytest.mark.slow
@pytest.mark.parametrize("matching", ["confidence", "hungarian"])
@given(truth=TRUTHS, extra=st.tuples(boxes(), CONFIDENCES), data=st.data())
def test_what_never_pays(
    matching: str, truth: list[Box], extra: tuple[Box, float], data: st.DataObject, make_batch: Make
) -> None:
    guarded = {"form": "guarded", "matching": matching}
    near = st.sampled_from(truth) | boxes()  # half of the answered boxes are right
    answer = data.draw(st.lists(st.tuples(near, CONFIDENCES), max_size=5, unique_by=lambda one: one[0]))
    score = judge(answer, truth, make_batch, **guarded)
    shuffled = data.draw(st.permutations(answer))
    assert judge(shuffled, truth, make_batch, **guarded) == pytest.approx(score), "the order"
    if answer:
        again = [*answer, (data.draw(st.sampled_from(answer))[0], extra[1])]
        assert judge(again, truth, make_batch, **guarded) <= score + 1e-6, "a box written again"
    far = ((80, 80, 90, 90), extra[1])
    assert judge([*answer, far], truth, make_batch, **guarded) <= score + 1e-6, "a box of nothing"
    perfect = [(box, 1.0) for box in dict.fromkeys(truth)]
    if len(perfect) == len(truth):
        assert judge(perfect, truth, make_batch, **guarded) == pytest.approx(1)
        assert judge([*perfect, extra], truth, make_batch, **guarded) < 1


def test_a_box_written_again_with_more_confidence_does_not_pay(make_batch: Make) -> None:
    again = [(FIRST, 0.2), (FIRST, 1.0)]
    once = judge([(FIRST, 0.2)], [FIRST], make_batch, overlap_weight=0)
    assert judge(again, [FIRST], make_batch, overlap_weight=0) == once
    assert judge(again, [FIRST], make_batch, overlap_weight=0, form="guarded") < once


def test_boxes_far_from_everything_with_no_confidence_do_not_pay_where_it_is_guarded(make_batch: Make) -> None:
    """The mean of c and 1 - c pays them: (0.1 + 1 + 1) / 3 is above 0.1."""
    spray = [((20 + n, 20, 30 + n, 30), 0.0) for n in range(2)]
    guarded = {"form": "guarded"}
    alone = judge([(HALF, 0.1)], [FIRST], make_batch, **guarded)
    assert judge([(HALF, 0.1), *spray], [FIRST], make_batch, **guarded) < alone
    assert judge([(HALF, 0.1), *spray], [FIRST], make_batch, overlap_weight=0) == pytest.approx(2.1 / 3)


def test_labels_count_where_they_are_asked_for(make_batch: Make) -> None:
    def say(*labels: str | None) -> str:
        pairs = zip([FIRST, SECOND], labels, strict=True)
        found = [{"bbox_2d": list(box)} | ({} if name is None else {"label": name}) for box, name in pairs]
        return f"```json\n{json.dumps(found)}\n```"

    truth, names = [FIRST, SECOND], ("cat", "red  dog")
    assert judge(say("dog", "cat"), truth, make_batch, names, tag=None) == 1
    # a wrong or missing label is a box of nothing: overlap 1 / 2, confidence (1 + (1 - 1)) / 2
    for said, score in ((("CAT", " red dog"), 1.0), (("cat", None), 0.5), (("dog", "cat"), 0.0)):
        assert judge(say(*said), truth, make_batch, names, tag=None, labels=True) == pytest.approx(score)


@in_one_test("convention", ["original", "resized", "thousand", "unit"])
def test_the_truth_in_any_unit_scores_the_most(convention: Any, make_batch: Make) -> None:
    canvas = Canvas((2000, 1000), (1988, 1008), convention)
    said = [round(value, 3) for value in canvas.box_to_model((500, 250, 1500, 750))]
    text = f"<answer>[{{'Position': {said}, 'Confidence': 1}}]</answer>"
    assert judge(text, [(500, 250, 1500, 750)], make_batch, canvas=canvas) == pytest.approx(1, abs=1e-3)


@in_one_test(
    "text",
    [
        "",
        "[{'Position': [0, 0, 10, 10], 'Confidence': 1}]",  # not in its tag
        "<answer></answer>",
        "<answer>[0, 0, 10, 10]</answer>",
        "<answer>[{'Position': [0, 0, 10], 'Confidence': 1}]</answer>",
        "<answer>[{'Position': '[0, 0, 10, 10]', 'Confidence': 1}]</answer>",
        "<answer>[{'Position': [0, 0, 10, True], 'Confidence': 1}]</answer>",
        "<answer>[{'Position': [0, 0, 1e1, 10], 'Confidence': 1}]</answer>",
        "<answer>[{'Position': [0, 0, 10, 10], 'Confidence': 2}]</answer>",
        "<answer>[{'Position': [0, 0, 10, 10], 'Confidence': NaN}]</answer>",
        "<answer>[{'Position': [0, 0, 10, 10], 'Confidence': '1'}]</answer>",
        "<answer>[{'Position': [0, 0, 10, 10], 'bbox_2d': [0, 0, 10, 10]}]</answer>",
        "<answer>[{'Confidence': 1}]</answer>",
        "<answer>[{'Position': [0, 0, 10, 10], 'Confidence': 1}, ...]</answer>",
        "<answer>[{'Position': [0, 0, 10, 10], 'Confidence': 1}</answer>",  # cut short
        "<answer>[{'Position': [0, 0, 10, 10], 'Confidence': 1}] or [{'Position': [1, 1, 9, 9]}]</answer>",
        "<answer>```json\n[]\n``` or ```json\n[]\n```</answer>",
        "<answer>__import__('os').getcwd()</answer>",
        "<answer>[{'Position': [0, 0, 10, 10]}]</answer><answer>[{'Position': [0, 0, 10, 10]}]</answer>",
    ],
)
def test_what_is_no_list_of_detections_scores_0(text: str, make_batch: Make) -> None:
    assert judge(text, [FIRST], make_batch) == 0
    with pytest.raises(ParseError):
        read_detections(text, "answer", CANVAS)


@in_one_test(
    ("boxes", "labels", "message"),
    [
        (None, None, "target.boxes must be a list of boxes"),
        ([[0, 0, 0, 1]], None, r"a box of target.boxes must be \[x1, y1, x2, y2\] with x1 < x2"),
        ([[0, 0, math.inf, 1]], None, "a box of target.boxes must be"),
        ([FIRST], None, "target.labels must be 1 texts, one for each box, got None"),
        ([FIRST], ["a", "b"], "target.labels must be 1 texts"),
        ([FIRST], [3], "target.labels must be 1 texts"),
    ],
)
def test_targets_that_cannot_judge(boxes: Any, labels: Any, message: str, make_batch: Make) -> None:
    with pytest.raises(ValueError, match=message):
        outputs = Outputs(texts=("x",), canvases=(CANVAS,))
        Detection(labels=True).score(make_batch(outputs, ["find"], [{"boxes": boxes, "labels": labels}]))


def test_without_an_image_nothing_can_be_judged(make_batch: Make) -> None:
    with pytest.raises(ValueError, match="has no image that coordinates could be of"):
        judge([(FIRST, 1.0)], [FIRST], make_batch, canvas=None)


@in_one_test(
    ("settings", "message"),
    [
        ({"threshold": 1}, "threshold must be"),
        ({"matching": "best"}, "matching must be one of confidence, hungarian, got 'best'"),
        ({"overlap_weight": 0, "confidence_weight": 0}, "must not both be 0"),
        ({"overlap_weight": -1}, "at least 0"),
        ({"tag": "<answer>"}, "tags must be"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Detection(**settings)
