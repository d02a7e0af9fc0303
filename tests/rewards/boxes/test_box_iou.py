"""IoU and its kin against counted pixels, hand numbers and inequalities; lists of boxes by all assignments."""

import json
import random
from collections.abc import Callable
from itertools import permutations
from math import atan, pi
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.parsing.coordinates import Canvas, Convention, format_box
from mmrl.rewards.base.boxes import box_overlap
from mmrl.rewards.boxes.box_iou import BoxIou
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

Make = Callable[..., RewardBatch]
Box = tuple[float, float, float, float]
ORIGINAL = Canvas((640, 480), (640, 480), "original")


def judge(texts: list[str], target: Any, make_batch: Make, canvas: Canvas | None = ORIGINAL, **settings: Any) -> Any:
    outputs = Outputs(texts=tuple(texts), canvases=(canvas,) * len(texts))
    return BoxIou(**settings).score(make_batch(outputs, texts, [{"box": target}] * len(texts))).tolist()


def batch(texts: list[str]) -> RewardBatch:
    return answers(texts, {"box": [100, 100, 300, 200]}, canvases=(ORIGINAL,) * len(texts))


def random_batch(random: random.Random) -> RewardBatch:
    def near(reach: int) -> str:
        return str([side + random.randint(-reach, reach) for side in (100, 100, 300, 200)])

    moved = [f"<answer>{near(reach)}</answer>" for reach in (1, 5, 20, 50, 100, 300)]
    return batch([*moved, "<answer>there</answer>", "[100, 100, 300, 200]"])


EXAMPLE = Example(random_batch=random_batch, best=lambda: batch(["<answer>[100, 100, 300, 200]</answer>"] * 4))


def tensor(*boxes: Box) -> Tensor:
    return torch.tensor(boxes, dtype=torch.float64)


@st.composite
def boxes(random_batch: st.DrawFn) -> Box:
    """Boxes on the pixels of a small image."""
    x1, y1 = random_batch(st.integers(0, 30)), random_batch(st.integers(0, 30))
    return x1, y1, x1 + random_batch(st.integers(1, 20)), y1 + random_batch(st.integers(1, 20))


def pixels(box: Box) -> set[tuple[int, int]]:
    x1, y1, x2, y2 = map(int, box)
    return {(x, y) for x in range(x1, x2) for y in range(y1, y2)}


@given(boxes(), boxes())
def test_iou_and_giou_are_those_of_counted_pixels(box: Box, other: Box) -> None:
    ours, theirs = pixels(box), pixels(other)
    hull = pixels((*map(min, box[:2], other[:2]), *map(max, box[2:], other[2:])))  # type: ignore[arg-type]  # four
    union = len(ours | theirs)
    iou = len(ours & theirs) / union
    assert float(box_overlap(tensor(box), tensor(other), "iou")) == pytest.approx(iou, abs=1e-12)
    giou = iou - (len(hull) - union) / len(hull)
    assert float(box_overlap(tensor(box), tensor(other), "giou")) == pytest.approx(giou, abs=1e-12)


@pytest.mark.slow
@given(boxes(), boxes())
def test_diou_and_ciou_are_their_formulas(box: Box, other: Box) -> None:
    iou = len(pixels(box) & pixels(other)) / len(pixels(box) | pixels(other))
    width, height = max(box[2], other[2]) - min(box[0], other[0]), max(box[3], other[3]) - min(box[1], other[1])
    dx, dy = (box[0] + box[2] - other[0] - other[2]) / 2, (box[1] + box[3] - other[1] - other[3]) / 2
    diou = iou - (dx * dx + dy * dy) / (width * width + height * height)
    v = (
        4
        / pi**2
        * (atan((other[2] - other[0]) / (other[3] - other[1])) - atan((box[2] - box[0]) / (box[3] - box[1]))) ** 2
    )
    ciou = diou - (v / (1 - iou + v) * v if v else 0)
    assert float(box_overlap(tensor(box), tensor(other), "diou")) == pytest.approx(diou, abs=1e-12)
    assert float(box_overlap(tensor(box), tensor(other), "ciou")) == pytest.approx(ciou, abs=1e-12)


@pytest.mark.slow
@given(boxes(), boxes(), st.floats(0.01, 100), st.floats(-1000, 1000))
def test_what_holds_for_all_boxes(box: Box, other: Box, scale: float, shift: float) -> None:
    one, two = tensor(box), tensor(other)
    iou, giou, diou, ciou = (float(box_overlap(one, two, kind)) for kind in ("iou", "giou", "diou", "ciou"))
    assert 0 <= iou <= 1 and (iou == 1) == (box == other)
    assert -1 < giou <= iou and ciou <= diou <= iou and diou > -1 and ciou > -1.5
    for kind, value in (("iou", iou), ("giou", giou), ("diou", diou), ("ciou", ciou)):
        assert float(box_overlap(two, one, kind)) == pytest.approx(value, abs=1e-12), "symmetric"  # type: ignore[arg-type]
        moved = box_overlap(one * scale + shift, two * scale + shift, kind)  # type: ignore[arg-type]
        assert float(moved) == pytest.approx(value, abs=1e-6), "the same in other units"


@in_one_test(
    ("kind", "far", "half", "same"),
    [
        # half: [0, 0, 10, 10] against [5, 0, 15, 10]: IoU 50 / 150, hull 150, centres 5 apart, diagonal^2 325
        ("iou", 0, 1 / 3, 1),
        ("giou", (1 - 9800 / 10000) / 2, (1 + 1 / 3) / 2, 1),  # far: hull 100 x 100, union 200
        ("diou", (1 - 2 * 90**2 / 20000) / 2, (1 + 1 / 3 - 25 / 325) / 2, 1),
        ("ciou", (1 - 2 * 90**2 / 20000) / 2, (1 + 1 / 3 - 25 / 325) / 2, 1),
    ],
)
def test_scores_by_hand(kind: str, far: float, half: float, same: float, make_batch: Make) -> None:
    texts = [
        "<answer>[90, 90, 100, 100]</answer>",
        "<answer>[5, 0, 15, 10]</answer>",
        "<answer>[0, 0, 10, 10]</answer>",
    ]
    assert judge(texts, [0, 0, 10, 10], make_batch, kind=kind) == pytest.approx([far, half, same])


@in_one_test("kind", ["iou", "giou", "diou", "ciou"])
@in_one_test(
    "text",
    [
        "<answer>[10, 10, 0, 0]</answer>",
        "<answer>[10, 0, 0, 10]</answer>",
        "<answer>[5, 5, 5, 9]</answer>",
        "<answer>[0, 0, 0, 0]</answer>",
        "<answer>(5, 5)</answer>",
        "<answer>none</answer>",
        "<answer>[NaN, 0, 10, 10]</answer>",
        "<answer>[0, 0, 1e999, 10]</answer>",
        "<answer>[0, 0, 10, 10], [0, 0, 10, 10]</answer>",
        "<answer>[0, 0, 10, 10]</answer><answer>[0, 0, 10, 10]</answer>",
        "[0, 0, 10, 10]",
        "",
    ],
)
def test_what_is_no_box_scores_0(kind: str, text: str, make_batch: Make) -> None:
    assert judge([text], [0, 0, 10, 10], make_batch, kind=kind) == [0.0]


def test_a_box_far_from_everything_is_near_0_and_no_less(make_batch: Make) -> None:
    text = "<answer>[999999999900, 999999999998, 999999999999, 999999999999]</answer>"  # flat, the truth is upright
    giou, diou, ciou = (judge([text], [0, 0, 1, 99], make_batch, kind=kind)[0] for kind in ("giou", "diou", "ciou"))
    assert 0 <= giou < 1e-6 and 0 <= diou < 1e-6 and ciou == 0  # CIoU itself is below -1 here


@in_one_test("convention", ["original", "resized", "thousand", "unit"])
def test_the_truth_in_any_unit_scores_the_most(convention: Convention, make_batch: Make) -> None:
    canvas = Canvas((2000, 1000), (1988, 1008), convention)
    truth = [500, 250, 1500, 750]
    text = f"<answer>[{format_box((500, 250, 1500, 750), canvas)}]</answer>"
    for kind in ("iou", "giou", "diou", "ciou"):
        assert judge([text], truth, make_batch, canvas, kind=kind) == pytest.approx([1], abs=1e-3)


def test_thin_boxes_and_boxes_below_1_count_as_any_others(make_batch: Make) -> None:
    assert judge(["<answer>[5, 5, 6, 9]</answer>"], [5, 5, 6, 9], make_batch) == [1]
    unit = Canvas((1, 1), (28, 28), "unit")
    assert judge(["<answer>[0.2, 0.2, 0.4, 0.6]</answer>"], [0.2, 0.2, 0.4, 0.4], make_batch, unit) == pytest.approx(
        [0.5]
    )


def test_a_threshold_makes_it_right_or_wrong(make_batch: Make) -> None:
    texts = [
        "<answer>[0, 0, 10, 10]</answer>",
        "<answer>[0, 0, 10, 5]</answer>",
        "<answer>[0, 0, 10, 6]</answer>",
        "no",
    ]
    assert judge(texts, [0, 0, 10, 10], make_batch, threshold=0.5) == [1, 0, 1, 0]  # exactly 0.5 is not above it
    assert judge(["so [0, 0, 10, 6] it is"], [0, 0, 10, 10], make_batch, tag=None) == pytest.approx([0.6])


@in_one_test(
    "target",
    [None, "0,0,1,1", [0, 0, 1], [0, 0, 1, "1"], [0, 0, 0, 1], [3, 0, 1, 1], [0, 0, float("nan"), 1], [0, 0, True, 1]],
)
def test_a_target_that_is_no_box_cannot_judge(target: Any, make_batch: Make) -> None:
    with pytest.raises(ValueError, match=r"target\.box must be \[x1, y1, x2, y2\] with x1 < x2 and y1 < y2, got"):
        judge(["<answer>[0, 0, 1, 1]</answer>"], target, make_batch)


def test_without_an_image_nothing_can_be_judged(make_batch: Make) -> None:
    with pytest.raises(ValueError, match="has no image that coordinates could be of"):
        judge(["<answer>[0, 0, 1, 1]</answer>"], [0, 0, 1, 1], make_batch, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"threshold": 1}, "threshold"), ({"threshold": -0.1}, "threshold"), ({"tag": "<answer>"}, "tags must be")],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BoxIou(**settings)


def judge_many(said: Any, truth: Any, **settings: Any) -> float:
    text = said if isinstance(said, str) else f"<answer>{json.dumps(said)}</answer>"
    made = answers([text], {"boxes": truth}, canvases=(ORIGINAL,))
    return float(BoxIou(many=True, **settings).score(made))


ONE, TWO = [0, 0, 10, 10], [20, 0, 40, 10]


@in_one_test(
    ("said", "score"),
    [
        ([ONE, TWO], 1),
        ([TWO, ONE], 1),
        ([{"bbox_2d": TWO, "label": "two"}, {"bbox_2d": ONE}], 1),
        ("<answer>```json\n[[0, 0, 10, 10], [20, 0, 40, 10]]\n```</answer>", 1),
        ([ONE], 1 / 2),
        (ONE, 1 / 2),
        ([ONE, ONE], 1 / 2),
        ([ONE, TWO, ONE], 2 / 3),
        ([ONE, TWO, [50, 50, 60, 60]], 2 / 3),
        ([[0, 0, 10, 5], [20, 0, 30, 10]], 1 / 2),
        ([[10, 10, 0, 0], TWO], 1 / 2),
        ([], 0),
        ("<answer>no objects</answer>", 0),
        ("<answer>[0, 0, 10, 10], [20, 0, 40, 10]</answer>", 0),
        ([[0, 0, 10]], 0),
        ([ONE, "two"], 0),
        ([[ONE]], 0),
        ("", 0),
    ],
)
def test_lists_of_boxes_by_hand(said: Any, score: float) -> None:
    assert judge_many(said, [ONE, TWO]) == pytest.approx(score)


def test_no_boxes_for_no_objects() -> None:
    assert (judge_many([], []), judge_many([ONE], []), judge_many("<answer>two</answer>", [])) == (1, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["iou", "giou"])
@pytest.mark.parametrize("threshold", [None, 0.5])
@given(
    said=st.lists(boxes(), min_size=1, max_size=4, unique=True),
    truth=st.lists(boxes(), min_size=1, max_size=4, unique=True),
)
def test_lists_are_matched_as_by_all_assignments(kind: Any, threshold: float | None, said: Any, truth: Any) -> None:
    def worth(box: Box, other: Box) -> float:
        value = float(box_overlap(tensor(box), tensor(other), kind))
        value = value if kind == "iou" else (1 + value) / 2
        return value if threshold is None else float(value > threshold)

    few, many = sorted((said, truth), key=len)
    best = max(sum(map(worth, few, some)) for some in permutations(many, len(few)))
    score = judge_many(said, truth, kind=kind, threshold=threshold)
    assert score == pytest.approx(best / len(many), abs=1e-6)
    assert judge_many([*said, said[0]], truth, kind=kind, threshold=threshold) <= score + 1e-6


def test_needs_and_targets_of_many_boxes() -> None:
    assert BoxIou(many=True).needs == {"texts", "canvases", "target.boxes"}
    assert BoxIou().needs == {"texts", "canvases", "target.box"}
    BoxIou(many=True).check(Prompt("find", target={"boxes": [ONE]}))
    with pytest.raises(ValueError, match=r"a box of target\.boxes must be"):
        BoxIou(many=True).check(Prompt("find", target={"boxes": [[0, 0, 0, 1]]}))
    with pytest.raises(ValueError, match=r"target\.box must be"):
        BoxIou().check(Prompt("find", target={"box": [[0, 0, 0, 1]]}))


@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True])
@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(many: bool, texts: list[str]) -> None:
    made = answers(texts, {"box": ONE, "boxes": [ONE, TWO]}, canvases=(ORIGINAL,) * len(texts))
    check_scores(BoxIou(many=many), made)
    check_scores(BoxIou(many=many, kind="ciou", tag=None), made)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    for texts in (megabytes(piece), HOSTILE):
        made = answers(texts, {"box": ONE, "boxes": [ONE, TWO]}, canvases=(ORIGINAL,) * len(texts))
        check_scores(BoxIou(), made)
        check_scores(BoxIou(many=True, tag=None), made)
