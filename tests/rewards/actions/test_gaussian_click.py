"""GUI-G2's reward against hand numbers, scipy's densities, and the integral that coverage stands for."""

import random
from collections.abc import Callable
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.parsing.actions.action import Action
from mmrl.parsing.coordinates import Canvas
from mmrl.rewards.actions.gaussian_click import GaussianClick, coverage_term, point_term
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

Make = Callable[..., RewardBatch]
SCREEN = Canvas((1920, 1080), (1932, 1092), "original")
TARGET = [100, 200, 140, 220]  # centre (120, 210)


def batch(texts: list[str]) -> RewardBatch:
    return answers(texts, {"box": TARGET}, canvases=(SCREEN,) * len(texts))


def random_batch(random: random.Random) -> RewardBatch:
    clicks = [f"({random.randint(80, 160)}, {random.randint(190, 230)})" for _ in range(3)]
    boxes = [str([side + random.randint(-reach, reach) for side in TARGET]) for reach in (2, 9, 30)]
    return batch([*clicks, *boxes, "(120, 210)", "there"])


EXAMPLE = Example(random_batch=random_batch, best=lambda: batch(["(120, 210)", "click [100, 200, 140, 220]"] * 2))


def judge(texts: list[str], make_batch: Make, **settings: Any) -> Any:
    outputs = Outputs(texts=tuple(texts), canvases=(SCREEN,) * len(texts))
    return GaussianClick(**settings).score(make_batch(outputs, texts, [{"box": TARGET}] * len(texts))).tolist()


def judge_actions(actions: list[Action | None], make_batch: Make, **settings: Any) -> Any:
    texts = ["(120, 210)"] * len(actions)  # a right answer, which must not be read
    outputs = Outputs(texts=tuple(texts), canvases=(SCREEN,) * len(actions), actions=tuple(actions))
    return GaussianClick(**settings).score(make_batch(outputs, texts, [{"box": TARGET}] * len(texts))).tolist()


def coordinates(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_point_by_hand(make_batch: Make) -> None:
    texts = ["(120, 210)", "(140, 210)", "(120, 200)", "(140, 220)", "(160, 210)", "nowhere", "(120, 210) (1, 2)"]
    at_the_edge = exp(-0.5)  # half a side away
    expected = [1, at_the_edge, at_the_edge, exp(-1), exp(-2), 0, 0]
    assert judge(texts, make_batch) == pytest.approx(expected)
    assert judge(["(140, 210)"], make_batch, alpha=1.0) == pytest.approx([exp(-0.125)])


def test_a_box_by_hand(make_batch: Make) -> None:
    texts = ["[100, 200, 140, 220]", "[140, 200, 180, 220]", "[110, 205, 130, 215]"]
    moved = exp(-2), exp(-(40**2) / (4 * 2 * 20**2))  # one width to the right, deviations 20
    halved = 1, 2 * 1 * 2 / (1 + 4)  # half of each side: 2 s t / (s^2 + t^2), squared by two axes, under the root
    assert judge(texts, make_batch) == pytest.approx([1, sum(moved) / 2, sum(halved) / 2])
    assert judge(texts, make_batch, coverage_weight=0) == pytest.approx([1, moved[0], 1])
    assert judge(texts, make_batch, point_weight=0) == pytest.approx([1, moved[1], halved[1]])
    assert judge(texts, make_batch, point_weight=3) == pytest.approx([1, (3 * moved[0] + moved[1]) / 4, 0.75 + 0.8 / 4])


def test_a_point_has_no_size_to_cover_with(make_batch: Make) -> None:
    assert judge(["(120, 210)"], make_batch, point_weight=0) == [0]
    assert judge(["(120, 210)"], make_batch, coverage_weight=5) == [1]


def test_a_point_does_not_escape_the_coverage_where_a_box_is_asked_for(make_batch: Make) -> None:
    loose, *points = ["[90, 195, 150, 225]", "(120, 210)", "[120, 210, 120, 210]"]  # right centres
    assert judge([loose, *points], make_batch) == [pytest.approx((1 + 12 / 13) / 2), 1, 1]
    assert judge([loose, *points], make_batch, needs_box=True) == [pytest.approx((1 + 12 / 13) / 2), 0, 0]


@pytest.mark.parametrize("text", ["[140, 220, 100, 200]", "[140, 200, 100, 220]", "[100, 210, 140, 210]"])
def test_an_inverted_or_flat_box_scores_0(text: str, make_batch: Make) -> None:
    assert judge([text], make_batch) == [0]


def test_actions_are_read_where_there_are_some(make_batch: Make) -> None:
    actions = [
        Action("click", point=(120, 210)),
        Action("double_click", point=(140, 210)),
        Action("click", box=(140, 200, 180, 220)),
        Action("type", text="(120, 210)"),
        Action("drag", point=(120, 210), end=(120, 210)),
        None,
    ]
    moved = (exp(-2) + exp(-0.5)) / 2
    assert judge_actions(actions, make_batch) == pytest.approx([1, exp(-0.5), moved, 0, 0, 0])


def test_the_answer_stands_in_its_tag(make_batch: Make) -> None:
    texts = ["<think>(1, 2)?</think><answer>(120, 210)</answer>", "(120, 210)"]
    assert judge(texts, make_batch, tag="answer") == [1, 0]
    assert judge(texts, make_batch) == [0, 1]


SIDES = st.floats(0.5, 50)
PLACES = st.floats(-60, 60)


@pytest.mark.slow
@given(PLACES, PLACES, SIDES, SIDES, st.floats(0.2, 1.5))
def test_the_point_term_is_the_density_over_its_peak(
    x: float, y: float, width: float, height: float, alpha: float
) -> None:
    expected = exp(norm.logpdf(x, 0, alpha * width) - norm.logpdf(0, 0, alpha * width))
    expected *= exp(norm.logpdf(y, 0, alpha * height) - norm.logpdf(0, 0, alpha * height))
    target = coordinates(-width / 2, -height / 2, width / 2, height / 2)
    assert float(point_term(coordinates(x, y), target, alpha)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def overlap_along_an_axis(centre: float, side: float, other: float, alpha: float) -> float:
    """The integral of sqrt(p q) on a fine grid."""
    deviations = alpha * side, alpha * other
    reach = 12 * max(deviations) + abs(centre)
    grid = np.linspace(-reach, reach, 40_001)
    return float(np.trapezoid(np.sqrt(norm.pdf(grid, 0, deviations[1]) * norm.pdf(grid, centre, deviations[0])), grid))


@pytest.mark.slow
@settings(max_examples=30)
@given(PLACES, PLACES, SIDES, SIDES, SIDES, SIDES, st.floats(0.2, 1.5))
def test_coverage_is_the_integral_of_the_root_of_both_densities(
    x: float, y: float, width: float, height: float, target_width: float, target_height: float, alpha: float
) -> None:
    box = coordinates(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    target = coordinates(-target_width / 2, -target_height / 2, target_width / 2, target_height / 2)
    expected = overlap_along_an_axis(x, width, target_width, alpha) * overlap_along_an_axis(
        y, height, target_height, alpha
    )
    assert float(coverage_term(box, target, alpha)) == pytest.approx(expected, rel=1e-3, abs=1e-9)


@pytest.mark.slow
@given(PLACES, PLACES, SIDES, SIDES, SIDES, SIDES)
def test_coverage_is_the_papers_formula_of_matrices(
    x: float, y: float, width: float, height: float, target_width: float, target_height: float
) -> None:
    box = coordinates(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    target = coordinates(-target_width / 2, -target_height / 2, target_width / 2, target_height / 2)
    ours, theirs = (
        np.diag([(0.5 * width) ** 2, (0.5 * height) ** 2]),
        np.diag([(0.5 * target_width) ** 2, (0.5 * target_height) ** 2]),
    )
    mean, apart = (ours + theirs) / 2, np.array([x, y])
    distance = apart @ np.linalg.inv(mean) @ apart / 8
    distance += np.log(np.linalg.det(mean) / sqrt(np.linalg.det(ours) * np.linalg.det(theirs))) / 2
    assert float(coverage_term(box, target, 0.5)) == pytest.approx(exp(-distance), rel=1e-6, abs=1e-12)


@pytest.mark.slow
@given(PLACES, PLACES, SIDES, SIDES, SIDES, SIDES, st.floats(0.001, 1000))
def test_scaling_and_moving_everything_changes_nothing(
    x: float, y: float, width: float, height: float, target_width: float, target_height: float, scale: float
) -> None:
    box, target = coordinates(x, y, x + width, y + height), coordinates(0, 0, target_width, target_height)
    value = float(coverage_term(box, target, 0.5))
    assert 0 <= value <= 1 + 1e-12
    assert float(coverage_term(scale * box + 7, scale * target + 7, 0.5)) == pytest.approx(value, rel=1e-6, abs=1e-9)
    assert float(coverage_term(target, box, 0.5)) == pytest.approx(value, rel=1e-9), "symmetric"
    assert float(coverage_term(target, target, 0.5)) == 1


@in_one_test(
    ("settings", "message"),
    [
        ({"alpha": 0}, "alpha must be above 0, got 0"),
        ({"point_weight": -1}, "point_weight must be at least 0, got -1"),
        ({"point_weight": 0, "coverage_weight": 0}, "must not both be 0"),
        ({"tag": ""}, "tags must be"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GaussianClick(**settings)


def test_a_target_without_area_cannot_judge(make_batch: Make) -> None:
    outputs = Outputs(texts=("(1, 2)",), canvases=(SCREEN,))
    with pytest.raises(ValueError, match=r"target\.box"):
        GaussianClick().score(make_batch(outputs, ["click"], [{"box": [5, 5, 5, 9]}]))
    with pytest.raises(ValueError, match=r"target\.box"):
        GaussianClick().check(Prompt("click", target={"box": [5, 5, 5, 9]}))


@pytest.mark.slow
@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    check_scores(GaussianClick(), batch(texts))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(GaussianClick(), batch([*megabytes(piece), *HOSTILE]))
