"""Seg-Zero's five terms one by one, its soft and strict keys, and what its own code reads."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Canvas, Convention
from mmrl.rewards.boxes.seg_zero import SegZero
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

IMAGE = Canvas((840, 840), (840, 840), "original")
TRUTH = {"box": [200, 200, 400, 300], "points": [[250, 250], [350, 250]]}
RIGHT = {"bbox": [200, 200, 400, 300], "points_1": [250, 250], "points_2": [350, 250]}


def batch(texts: list[str], truth: Any = TRUTH, canvas: Canvas | None = IMAGE) -> RewardBatch:
    return answers(texts, truth, canvases=(canvas,) * len(texts))


def written(said: Any) -> str:
    return f"<think>there</think>\n<answer>{said if isinstance(said, str) else json.dumps(said)}</answer>"


def terms(said: Any, truth: Any = TRUTH, canvas: Canvas | None = IMAGE, **settings: Any) -> int:
    """How many terms of the five; the first one is always earned."""
    return round(5 * float(SegZero(**settings).score(batch([written(said)], truth, canvas))))


def random_batch(random: random.Random) -> RewardBatch:
    def near(reach: int) -> str:
        moved = {key: [side + random.randint(-reach, reach) for side in place] for key, place in RIGHT.items()}
        return written(moved)

    return batch(["", "[1, 2]", written("no"), written(RIGHT), *map(near, (2, 9, 40, 300))])


EXAMPLE = Example(random_batch=random_batch, best=lambda: batch([written(RIGHT), written(RIGHT | {"why": "red"})] * 2))


@in_one_test(
    ("changed", "count"),
    [
        ({}, 5),
        ({"points_1": [350, 250], "points_2": [250, 250]}, 5),  # in the other order
        ({"bbox": [209, 209, 409, 309]}, 5),  # 9 pixels on each side
        ({"bbox": [210, 210, 410, 310]}, 4),  # exactly 10 is not below 10; IoU 171 / 229
        ({"bbox": [200, 200, 300, 300]}, 2),  # IoU exactly 0.5, 25 pixels aside, and one point outside
        ({"bbox": [200, 200, 301, 300], "points_2": [300, 250]}, 4),  # IoU 0.505 and points within 25
        ({"bbox": [400, 300, 200, 200]}, 2),  # corners swapped: it holds no point, 150 aside
        ({"points_1": [199, 250]}, 4),  # outside of the answered box
        ({"points_1": [200, 300], "points_2": [400, 200]}, 5),  # on its border: 70.7 each
        ({"points_1": [250, 250], "points_2": [250, 250]}, 5),  # 100 / 2
        ({"bbox": [0, 0, 840, 840], "points_1": [250, 50], "points_2": [350, 50]}, 2),  # 200 away
        ({"bbox": [0, 0, 840, 840], "points_1": [250, 150], "points_2": [350, 150]}, 2),  # exactly 100 is not below it
        ({"bbox": [0, 0, 840, 840], "points_1": [250, 151], "points_2": [350, 151]}, 3),
    ],
)
def test_terms_by_hand(changed: dict[str, Any], count: int) -> None:
    assert terms(RIGHT | changed) == count


@in_one_test(
    ("text", "count"),
    [
        (f"<answer>{json.dumps(RIGHT)}</answer>", 4),
        (f"<think>a</think> so <answer>{json.dumps(RIGHT)}</answer>", 4),
        (f"<answer>{json.dumps(RIGHT)}</answer><think>a</think>", 4),
        ("<think>a</think><answer>no</answer>", 1),
        (json.dumps(RIGHT), 0),
        (f"<think>{json.dumps(RIGHT)}</think><answer>no</answer>", 1),  # their code reads it there
        (f"{written(RIGHT)} <answer>{json.dumps(RIGHT)}</answer>", 0),
        (written([RIGHT]), 1),
        (written(RIGHT) * 2, 0),
        ("", 0),
    ],
)
def test_thoughts_and_answers_are_judged_apart(text: str, count: int) -> None:
    assert float(SegZero().score(batch([text]))) * 5 == pytest.approx(count)


@in_one_test(
    ("said", "soft", "strict"),
    [
        (RIGHT | {"label": "dog"}, 5, 5),
        ({"bbox_2d": RIGHT["bbox"], "point_a": [250, 250], "Points_B": [350, 250]}, 5, 1),
        (RIGHT | {"points_3": [0, 0]}, 5, 5),
        ({"points_0": [0, 0]} | RIGHT, 4, 5),  # soft takes the first two
        ({"bbox": RIGHT["bbox"], "points_1": [250, 250]}, 1, 1),
        (RIGHT | {"bbox": [200, 200, 400]}, 1, 1),
        (RIGHT | {"bbox": [200, 200, 400, "300"]}, 1, 1),
        (RIGHT | {"points_1": [250, True]}, 1, 1),
        (RIGHT | {"points_1": "ab"}, 1, 1),
    ],
)
def test_soft_and_strict_keys(said: Any, soft: int, strict: int) -> None:
    assert (terms(said), terms(said, strict=True)) == (soft, strict)


def test_distances_are_on_the_stretched_image() -> None:
    """Two of four sides are 19 pixels aside: of 1680 pixels that is 4.75 of 840 on average, of 420 it is 19."""
    for scale, count in ((2, 5), (0.5, 4)):
        canvas = Canvas((round(840 * scale), 840), (840, 840), "original")
        truth = {"box": [200 * scale, 200, 400 * scale, 300], "points": [[250 * scale, 250], [350 * scale, 250]]}
        said = {"bbox": [200 * scale + 19, 200, 400 * scale + 19, 300]} | {
            name: [x * scale, y] for name, (x, y) in (("points_1", (250, 250)), ("points_2", (350, 250)))
        }
        assert terms(said, truth, canvas) == count, scale
    assert terms(RIGHT | {"bbox": [205, 205, 405, 305]}, side=2000) == 4


@in_one_test("convention", ["original", "resized", "thousand", "unit"])
def test_the_truth_in_any_unit_scores_the_most(convention: Convention) -> None:
    canvas = Canvas((1000, 500), (980, 504), convention)
    said = {
        "bbox": [round(side, 3) for side in canvas.box_to_model((200, 200, 400, 300))],
        "points_1": [round(side, 3) for side in canvas.point_to_model((250, 250))],
        "points_2": [round(side, 3) for side in canvas.point_to_model((350, 250))],
    }
    assert terms(said, canvas=canvas) == 5


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    check_scores(SegZero(), batch(texts))
    check_scores(SegZero(strict=True), batch(texts))


def test_hostile_texts_have_a_score() -> None:
    check_scores(SegZero(), batch(list(HOSTILE)))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(SegZero(), batch(list(megabytes(piece))))


@in_one_test(
    ("truth", "message"),
    [
        (TRUTH | {"box": [5, 5, 5, 9]}, r"target\.box must be"),
        (TRUTH | {"points": [[1, 2]]}, r"target\.points must be two points"),
        (TRUTH | {"points": [[1, 2], [3]]}, r"a point of target\.points must be \[x, y\]"),
        (TRUTH | {"points": None}, r"target\.points must be two points"),
    ],
)
def test_targets_that_cannot_judge(truth: dict[str, Any], message: str) -> None:
    for score in (lambda: terms("no", truth), lambda: SegZero().check(Prompt("segment", target=truth))):
        with pytest.raises(ValueError, match=message):
            score()


def test_without_an_image_nothing_can_be_judged() -> None:
    with pytest.raises(ValueError, match="has no image that coordinates could be of"):
        terms("no", canvas=None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"min_iou": 1}, "min_iou must be"), ({"box_distance": 0}, "above 0, got 0"), ({"side": -1}, "must be above 0")],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SegZero(**settings)
