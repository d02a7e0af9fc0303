"""Regions by hand, coverage against counted pixels, and answers that hold no regions."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Canvas, Convention
from mmrl.rewards.boxes.region_coverage import RegionCoverage, covered_share
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

IMAGE = Canvas((100, 100), (100, 100), "original")
BOXES = [[0, 0, 10, 10], [60, 60, 80, 80]]  # 100 and 400 pixels
BOTH = [[0, 0, 20, 20], [60, 60, 90, 90]]
ONLY = {"coverage": (1, 0, 0), "apart": (0, 1, 0), "size": (0, 0, 1)}


def said(regions: Any) -> str:
    return f"<think>there</think><answer>{[{'bbox_2d': list(one)} for one in regions]}</answer>"


def batch(texts: Sequence[str], boxes: Any = BOXES, canvas: Canvas | None = IMAGE) -> RewardBatch:
    return answers(texts, {"boxes": boxes}, canvases=(canvas,) * len(texts))


def judge(regions: Any, boxes: Any = BOXES, canvas: Canvas = IMAGE, **settings: Any) -> float:
    text = regions if isinstance(regions, str) else said(regions)
    return float(RegionCoverage(**settings).score(batch([text], boxes, canvas)))


def part(name: str, regions: Any, boxes: Any = BOXES, canvas: Canvas = IMAGE, **settings: Any) -> float:
    """One part alone."""
    weights = dict(zip(("coverage_weight", "apart_weight", "size_weight"), ONLY[name], strict=True))
    return judge(regions, boxes, canvas, **weights, **settings)


def random_batch(source: random.Random) -> RewardBatch:
    def region() -> list[int]:
        x, y = source.randint(0, 90), source.randint(0, 90)
        return [x, y, x + source.randint(1, 60), y + source.randint(1, 60)]

    texts = ["no", said([]), said([[0, 0, 100, 100], [0, 0, 100, 100]]), said(BOTH)]
    return batch([*texts, *(said([region() for _ in range(source.randint(1, 4))]) for _ in range(8))])


EXAMPLE = Example(random_batch=random_batch, best=lambda: batch([said(BOTH), said(BOXES)] * 2))


@in_one_test(
    ("regions", "coverage", "apart", "size"),
    [
        (BOTH, 1, 1, 1),
        (BOXES, 1, 1, 1),  # 1 % and 4 % of the image
        ([[60, 60, 90, 90]], 400 / 500, 1, 1),
        ([[60, 60, 70, 90]], 200 / 500, 1, 1),
        ([[60, 60, 70, 80], [70, 60, 80, 80]], 400 / 500, 1, 1),  # halves of one box
        ([[60, 60, 80, 80], [60, 60, 80, 80]], 400 / 500, 0, 1),  # nothing is covered twice
        ([[60, 60, 80, 80], [60, 60, 80, 86]], 400 / 500, 0, 1),  # IoU 400 / 520
        ([[0, 0, 20, 10], [10, 0, 30, 10]], 100 / 500, 0, 1),  # IoU 1 / 3
        ([[0, 0, 20, 10], [11, 0, 31, 10]], 100 / 500, 1, 1),  # 9 / 31
        ([[20, 20, 40, 40]], 0, 1, 1),
        ([[0, 0, 100, 100]], 1, 1, 0),
        ([[0, 0, 50, 100], [50, 0, 100, 100]], 1, 1, 1),  # two halves, as the docstring says
        ([[0, 0, 9, 9]], 81 / 500, 1, 0),  # 0.81 %
        ([[-50, -50, 10, 10]], 100 / 500, 1, 1),  # 1 % of it is in the image
        ([[-50, -50, 9, 10]], 90 / 500, 1, 0),
        ([[80, 80, 60, 60]], 0, 1, 0),
        ([[80, 60, 60, 80]], 0, 1, 0),
        ([[300, 300, 400, 400]], 0, 1, 0),
    ],
)
def test_parts_by_hand(regions: Any, coverage: float, apart: float, size: float) -> None:
    assert part("coverage", regions) == pytest.approx(coverage)
    assert (part("apart", regions), part("size", regions)) == (apart, size)
    assert judge(regions) == pytest.approx((coverage + apart + size) / 3)
    weighted = judge(regions, coverage_weight=2, apart_weight=1, size_weight=0.5)
    assert weighted == pytest.approx((2 * coverage + apart + size / 2) / 3.5)


def test_boxes_may_be_matched_one_by_one() -> None:
    assert part("coverage", BOTH, measure="matched") == 0  # IoU 1 / 4 and 4 / 9
    assert part("coverage", BOTH, measure="matched", min_iou=0.4) == 0.5
    assert part("coverage", BOTH, measure="matched", min_iou=0.25) == 1
    assert part("coverage", [[0, 0, 10, 20]], measure="matched") == 0.5  # IoU 1 / 2 is enough


def test_the_limits_are_settings() -> None:
    twice = [[0, 0, 20, 10], [10, 0, 30, 10]]
    assert part("apart", twice, max_overlap=0.34) == 1 and part("apart", twice, max_overlap=0.33) == 0
    assert part("size", [[0, 0, 9, 9]], min_area=0.008) == 1
    assert part("size", [[0, 0, 90, 90]], max_area=0.81) == 1 and part("size", [[0, 0, 90, 90]], max_area=0.8) == 0


def test_no_region_and_too_many_score_nothing() -> None:
    four = [[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10], [60, 60, 80, 80]]
    assert judge([]) == judge("<answer>No Objects</answer>") == judge(four) == 0
    assert judge(four[:3]) == pytest.approx((100 / 500 + 2) / 3)
    assert judge(four, max_regions=4) == 1
    assert judge("the upper left corner") == judge("<answer>[1, 2]</answer>") == 0
    assert judge(f"{BOTH}", tag=None) == 1


@pytest.mark.parametrize("convention", ["original", "resized", "thousand", "unit"])
def test_regions_are_in_the_unit_of_the_model(convention: Convention) -> None:
    canvas = Canvas((200, 100), (400, 100), convention)
    width, height = canvas.span
    region = [[0, 0, width / 2, height / 4]]  # 100 x 25 pixels: an eighth of the image
    assert part("coverage", region, [[50, 0, 150, 25]], canvas) == pytest.approx(0.5)
    assert part("size", region, canvas=canvas, min_area=0.12, max_area=0.13) == 1


def test_area_against_counted_pixels() -> None:
    source = np.random.default_rng(0)
    for _ in range(50):
        masks, sides = [], []
        for count in source.integers(1, 6, 2):
            mask, boxes = np.zeros((30, 40), bool), []
            for _ in range(count):
                x1, y1 = source.integers(0, 35), source.integers(0, 25)
                x2, y2 = source.integers(x1 + 1, 41), source.integers(y1 + 1, 31)
                mask[y1:y2, x1:x2] = True
                boxes.append((x1, y1, x2, y2))
            masks.append(mask)
            sides.append(torch.tensor(np.array(boxes), dtype=torch.float64))
        assert covered_share(*sides) == pytest.approx((masks[0] & masks[1]).sum() / masks[0].sum())


@in_one_test(
    ("boxes", "message"),
    [
        (3, r"target\.boxes must be a list of boxes, got 3"),
        ([], r"target\.boxes must hold at least one box to cover, got none"),
        ([[1, 2, 1, 4]], r"must be \[x1, y1, x2, y2\]"),
    ],
)
def test_a_target_without_boxes_is_refused(boxes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RegionCoverage().check(Prompt("?", target={"boxes": boxes}))


@in_one_test(
    ("settings", "message"),
    [
        ({"min_area": 0.6}, "min_area must be at most max_area, got 0.6 and 0.5"),
        ({"coverage_weight": 0, "apart_weight": 0, "size_weight": 0}, "must not all be 0"),
        ({"max_overlap": 1.1}, "max_overlap must be at least 0 and at most 1, got 1.1"),
        ({"max_regions": 0}, "max_regions must be at least 1"),
        ({"tag": "<answer>"}, "tags must be"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RegionCoverage(**settings)


def test_a_prompt_without_an_image_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no image"):
        RegionCoverage().score(batch([said(BOTH)], canvas=None))


@given(TEXTS)
def test_any_text_has_a_score(text: str) -> None:
    check_scores(RegionCoverage(tag=None), batch([text]))


@pytest.mark.timeout(60)
def test_hostile_texts_have_scores() -> None:
    check_scores(RegionCoverage(), batch([*HOSTILE, said([[0, 0, 10**11, 10**11]])]))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_scored(piece: str) -> None:
    check_scores(RegionCoverage(), batch(megabytes(piece)))
