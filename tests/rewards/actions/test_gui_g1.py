"""GUI-G1's three terms by hand and by a slow loop, and the boxes that its own code pays for nothing."""

import random
from statistics import harmonic_mean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Canvas, Convention, format_box
from mmrl.rewards.actions.gui_g1 import GuiG1, size_term
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

SCREEN = Canvas((200, 100), (224, 112), "original")
BOX = [20, 20, 60, 40]
TOTAL = 1.375


def batch(texts: list[str], box: Any = BOX, canvas: Canvas | None = SCREEN) -> RewardBatch:
    return answers(texts, {"box": box}, canvases=(canvas,) * len(texts))


def judge(texts: list[str], box: Any = BOX, canvas: Canvas | None = SCREEN, **settings: Any) -> Any:
    return GuiG1(**settings).score(batch(texts, box, canvas)).tolist()


def random_batch(random: random.Random) -> RewardBatch:
    boxes = [sorted(random.choices(range(200), k=2)) + sorted(random.choices(range(100), k=2)) for _ in range(5)]
    said = [f"[{x1}, {y1}, {x2}, {y2}]" for x1, x2, y1, y2 in boxes]
    return batch(["nothing", "[20, 20, 60, 40]", "[22, 19, 61, 38]", *said])


EXAMPLE = Example(random_batch=random_batch, best=lambda: batch(['```json\n[{"bbox_2d": [20, 20, 60, 40]}]\n```'] * 4))


def test_the_terms_by_hand() -> None:
    # the same; half as wide; moved by its width, sides off by 40 of 200; inside and tiny
    texts = ["[20, 20, 60, 40]", "[20, 20, 40, 40]", "[60, 20, 100, 40]", "[39, 29, 41, 31]"]
    hit, iou = [1.0, 1.0, 0.0, 1.0], [1, 0.5, 0, 4 / 800]
    size = [1, 4 / (3 + 1 / 0.9), 4 / (2 + 2 / 0.8), 4 / (2 / (1 - 19 / 200) + 2 / (1 - 9 / 100))]
    assert judge(texts, iou_weight=0, size_weight=0) == hit
    assert judge(texts, hit_weight=0, size_weight=0) == pytest.approx(iou)
    assert judge(texts, hit_weight=0, iou_weight=0) == pytest.approx(size)
    both = [(a + 0.25 * b + 0.125 * c) / TOTAL for a, b, c in zip(hit, iou, size, strict=True)]
    assert judge(texts) == pytest.approx(both)


SIDES = st.lists(st.floats(-50, 300), min_size=4, max_size=4)


@given(SIDES, SIDES)
def test_the_size_term_is_a_harmonic_mean(box: list[float], target: list[float]) -> None:
    near = [max(0.0, 1 - abs(a - b) / c) for a, b, c in zip(box, target, (200, 100, 200, 100), strict=True)]
    made = [torch.tensor([one], dtype=torch.float64) for one in (box, target, [200, 100])]
    assert float(size_term(*made)) == pytest.approx(harmonic_mean(near), abs=1e-9)


@in_one_test(
    "text",
    [
        "[60, 40, 20, 20]",  # their code: the centre is right
        "[20, 40, 60, 20]",
        "[40, 30, 40, 30]",
        "(40, 30)",
        "[20, 20, 60, 40], [20, 20, 60, 40]",
        "[20, 20, 60, 1e1]",
        "",
    ],
)
def test_what_is_no_box_scores_0(text: str) -> None:
    assert judge([text]) == [0]


def test_sides_that_are_off_by_more_than_the_image_have_no_size() -> None:
    assert judge(["[-400, 20, 500, 40]"], hit_weight=0, iou_weight=0) == [0]


@in_one_test("convention", ["original", "resized", "thousand", "unit"])
def test_the_truth_in_any_unit_scores_the_most(convention: Convention) -> None:
    canvas = Canvas((2000, 1000), (1988, 1008), convention)
    assert judge([f"[{format_box((500, 250, 1500, 750), canvas)}]"], [500, 250, 1500, 750], canvas) == pytest.approx(
        [1], abs=1e-3
    )


@pytest.mark.slow
@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    check_scores(GuiG1(), batch(texts))


def test_hostile_texts_have_a_score() -> None:
    check_scores(GuiG1(), batch(list(HOSTILE)))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(GuiG1(), batch(list(megabytes(piece))))


def test_a_target_without_area_cannot_judge() -> None:
    with pytest.raises(ValueError, match=r"target\.box"):
        judge(["[1, 2, 3, 4]"], [5, 5, 5, 9])
    with pytest.raises(ValueError, match=r"target\.box"):
        GuiG1().check(Prompt("click", target={"box": [5, 5, 5, 9]}))
    with pytest.raises(ValueError, match="has no image that coordinates could be of"):
        judge(["[1, 2, 3, 4]"], canvas=None)


@pytest.mark.parametrize("settings", [{"hit_weight": -1}, {"hit_weight": 0, "iou_weight": 0, "size_weight": 0}])
def test_impossible_weights_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"hit_weight must be at least 0, got -1|must not all be 0"):
        GuiG1(**settings)


def test_the_difficulty_multiplies_the_score() -> None:
    # the box has 800 of 20,000 pixels: 0.04 of the screen
    assert judge([f"{BOX}"], difficulty="area", typical_area=0.01) == [0.5]  # sqrt(1 / 4), the least
    assert judge([f"{BOX}"], difficulty="area", typical_area=0.09, most=4) == [1.5]
    assert judge([f"{BOX}"], difficulty="area", typical_area=0.9) == [2.0]  # sqrt(22.5), cut
    rows = answers([f"{BOX}", "nothing"], {"box": BOX, "rate": 1.25}, canvases=(SCREEN,) * 2)
    assert GuiG1(difficulty="row").score(rows).tolist() == [1.25, 0.0]
    assert GuiG1(difficulty="row").range == (0.0, float("inf")) and GuiG1(difficulty="area").range == (0.0, 2.0)
    assert "target.rate" in GuiG1(difficulty="row").needs
    with pytest.raises(ValueError, match=r"target\.rate must be a number of at least 0, got -1"):
        GuiG1(difficulty="row").check(Prompt("?", target={"box": BOX, "rate": -1}))
