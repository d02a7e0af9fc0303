"""Masks against pycocotools, scikit-image, shapely and counted pixels; what is no mask of this image."""

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pycocotools import mask as coco

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.answers import ParseError
from mmrl.parsing.coordinates import Canvas, Convention
from mmrl.rewards.base.masks import MAX_CORNERS, MAX_RINGS
from mmrl.rewards.boxes.mask_iou import MaskIou
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

IMAGE = Canvas((20, 10), (28, 28), "original")
SQUARE = [[2, 2, 10, 2, 10, 8, 2, 8]]  # 8 x 6 = 48 pixels


def batch(texts: list[str], mask: Any = None, canvas: Canvas | None = IMAGE) -> RewardBatch:
    return answers(texts, {"mask": SQUARE if mask is None else mask}, canvases=(canvas,) * len(texts))


def written(said: Any) -> str:
    return f"<answer>{json.dumps(said)}</answer>"


def judge(said: Any, mask: Any = None, canvas: Canvas | None = IMAGE, **settings: Any) -> float:
    text = said if isinstance(said, str) else written(said)
    return float(MaskIou(**settings).score(batch([text], mask, canvas)))


def run_lengths(pixels: NDArray[np.bool_]) -> dict[str, Any]:
    """A mask as pycocotools writes it."""
    made = coco.encode(np.asfortranarray(pixels.astype(np.uint8)))
    return {"size": list(made["size"]), "counts": made["counts"].decode()}


def random_batch(random: random.Random) -> RewardBatch:
    def polygon() -> list[list[int]]:
        return [[random.randint(0, 20), random.randint(0, 10)] for _ in range(random.randint(3, 6))]

    said = [written(SQUARE), written([2, 2, 10, random.randint(3, 8)]), "<answer>no mask</answer>"]
    return batch([*said, *(written(polygon()) for _ in range(5))])


def best() -> RewardBatch:
    pixels = np.zeros((10, 20), dtype=bool)
    pixels[2:8, 2:10] = True
    said = [SQUARE, [2, 2, 10, 8], run_lengths(pixels), {"bbox_2d": [2, 2, 10, 8]}]
    return batch(list(map(written, said)))


EXAMPLE = Example(random_batch=random_batch, best=best)


def test_scores_by_hand() -> None:
    # left half: 24 of 48; 24 more at its right: 48 of 72; beside it; outside of the image it does not count
    for box, iou, dice in (
        ([2, 2, 6, 8], 24 / 48, 48 / 72),
        ([2, 2, 14, 8], 48 / 72, 96 / 120),
        ([11, 0, 20, 10], 0, 0),
        ([2, 2, 10, 9], 48 / 56, 96 / 104),
    ):
        assert judge(box) == pytest.approx(iou)
        assert judge(box, measure="dice") == pytest.approx(dice)
        assert judge(box, threshold=0.5) == float(iou > 0.5)
    assert judge([-100, 2, 10, 8], [0, 2, 10, 8]) == 1


@in_one_test(
    "said",
    [
        [[2, 2], [10, 2], [10, 8], [2, 8]],
        [2, 2, 10, 2, 10, 8, 2, 8],
        [[[2, 2], [6, 2], [6, 8], [2, 8]], [6, 2, 10, 8]],  # two parts
        [[2, 2, 7, 8], [4, 2, 10, 8]],  # that overlap
        {"segmentation": SQUARE, "label": "a square"},
        {"polygon": [[2, 2], [2, 8], [10, 8], [10, 2]]},
        {"mask": {"size": [10, 20], "counts": [22, 6, 4, 6, 4, 6, 4, 6, 4, 6, 4, 6, 4, 6, 4, 6, 102]}},
        "<answer>```json\n{'bbox': [2, 2, 10, 8]}\n```</answer>",
    ],
)
def test_masks_as_they_are_written(said: Any) -> None:
    assert judge(said) == 1


@in_one_test(
    "said",
    [
        [10, 8, 2, 2],
        [10, 2, 2, 8],
        [[2, 2], [10, 8]],
        [2, 2, 10],
        [2, 2, 10, 2, 10],
        [2, 2, 10, True],
        [],
        [[]],
        "",
        "<answer>a square</answer>",
        written(SQUARE) * 2,
        json.dumps(SQUARE),
        {"bbox": [2, 2, 10, 8], "polygon": SQUARE},
        {"shape": SQUARE},
        {"mask": {"mask": SQUARE}},
        {"size": [20, 10], "counts": [22, 6, 172]},  # of another image
        {"size": [10, 20], "counts": [22, 6, 171]},
        {"size": [10, 20], "counts": [22, -6, 184]},
        {"size": [10, 20], "counts": [22.0, 6.0, 172.0]},
        {"size": [10, 20], "counts": "f0\u0141"},
        {"size": [10, 20], "counts": "ooooooooooooooo"},
        {"size": [10, 20], "counts": 200},
        {"size": [10**9, 10**9], "counts": [10**11]},
        {"size": [10, 20]},
        [[0, 0, 0.1, 0.1]] * (MAX_RINGS + 1),
        [[n, n % 2] for n in range(MAX_CORNERS + 1)],
    ],
)
def test_what_is_no_mask_of_this_image_scores_0(said: Any) -> None:
    assert judge(said) == 0


MASKS = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**144 - 1)).map(
    lambda made: np.array([made[2] >> bit & 1 for bit in range(made[0] * made[1])], dtype=bool).reshape(made[:2])
)


@given(MASKS, MASKS)
def test_iou_is_that_of_pycocotools(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> None:
    height, width = min(one.shape[0], other.shape[0]), min(one.shape[1], other.shape[1])
    one, other = one[:height, :width], other[:height, :width].copy()
    other[0, 0] = True  # a target is not empty
    said, true = run_lengths(one), run_lengths(other)
    packed = [coco.encode(np.asfortranarray(mask.astype(np.uint8))) for mask in (one, other)]
    expected = coco.iou(packed[:1], packed[1:], [0])[0][0]
    canvas = Canvas((width, height), (28, 28), "original")
    assert judge(said, true, canvas) == pytest.approx(expected)


def test_points_by_hand() -> None:
    def score(said: Any, **settings: Any) -> float:
        return judge(said, measure="points", **settings)

    assert score([[3, 3], [9.9, 7.9]]) == 1
    assert score([{"point_2d": [3, 3], "label": "a"}, {"point_2d": [4, 4]}]) == 1
    assert score([[3, 3], [10, 8]]) == 0.5  # borders at the right and below are outside
    assert score([3, 3]) == score([[3, 3]]) == 0.5
    assert score([[3, 3]], num_points=1) == 1
    assert score([[3, 3], [3, 3]]) == 0.5, "a point written again is no other"
    assert score([[3, 3], [4, 4], [0, 0], [-1, 5]]) == 0.5
    assert score([[3, 3], [4, 4]] * 200) == score([]) == score([[3, 3, 4]]) == score("<answer>here</answer>") == 0
    assert score([[3, 3], [4, 0]], threshold=0.5) == 0


@in_one_test("convention", ["original", "resized", "thousand", "unit"])
def test_the_truth_in_any_unit_scores_the_most(convention: Convention) -> None:
    canvas = Canvas((200, 100), (196, 112), convention)
    box = [round(side, 3) for side in canvas.box_to_model((20, 20, 100, 80))]
    corners = [box[0], box[1], box[2], box[1], box[2], box[3], box[0], box[3]]
    for said in (box, corners):
        assert judge(said, [20, 20, 100, 80], canvas) == pytest.approx(1, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["iou", "points"])
@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(measure: Any, texts: list[str]) -> None:
    check_scores(MaskIou(measure=measure, tag=None), batch(texts))
    check_scores(MaskIou(measure=measure), batch(texts))


NESTED = st.recursive(st.integers(-5, 25) | st.none() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=6))


@pytest.mark.slow
@given(st.lists(NESTED, max_size=5) | st.dictionaries(st.sampled_from(["size", "counts", "mask", "bbox"]), NESTED))
def test_any_json_has_a_score(said: Any) -> None:
    check_scores(MaskIou(), batch([written(said)]))


def test_hostile_texts_have_a_score() -> None:
    check_scores(MaskIou(), batch(list(HOSTILE)))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(MaskIou(tag=None), batch(list(megabytes(piece))))


@pytest.mark.slow  # most of a second each, or more
@pytest.mark.timeout(60)
def test_many_large_polygons_are_judged_in_time() -> None:
    canvas = Canvas((2000, 1000), (28, 28), "original")
    ring = [0, 0, 2000, 0, 1999, 1000]
    assert 0 < judge([ring] * MAX_RINGS, [0, 0, 1000, 1000], canvas) < 1
    assert judge([[n % 2000, n * 7 % 1000] for n in range(MAX_CORNERS)], [0, 0, 1000, 1000], canvas) > 0


@in_one_test(
    ("mask", "message"),
    [
        (3, "is no mask: a polygon is a list"),
        ("f0", "is no mask"),
        ({"size": [10, 20], "counts": [1, 2]}, "is no mask: run lengths of 20 x 10 pixels add up to 3"),
        ({"size": [10, 20], "counts": [200]}, "is empty"),
        ([[2, 2, 2, 8, 2, 4]], "is empty"),
        ([2, 2, 2, 8], "is no mask: a box is"),
    ],
)
def test_targets_that_cannot_judge(mask: Any, message: str) -> None:
    for score in (lambda: judge("no", mask), lambda: MaskIou().check(Prompt("what", target={"mask": mask}))):
        with pytest.raises(ValueError, match=message) as caught:
            score()
        assert not isinstance(caught.value, ParseError)


def test_targets_that_are_of_another_image_cannot_judge() -> None:
    with pytest.raises(
        ValueError, match=r"is none of this image: run lengths are of 10 x 20 pixels, the image 20 x 10"
    ):
        judge("no", {"size": [20, 10], "counts": [100, 100]})
    with pytest.raises(ValueError, match=r"holds no pixel of the image of \(20, 10\)"):
        judge("no", [30, 0, 40, 10])
    with pytest.raises(ValueError, match="has no image that coordinates could be of"):
        judge("no", canvas=None)


@in_one_test(
    ("settings", "message"),
    [
        ({"measure": "giou"}, "measure must be one of iou, dice, points, intersection, union, got 'giou'"),
        ({"threshold": 1}, "threshold must be"),
        ({"num_points": 0}, "num_points must be at least 1"),
        ({"tag": ""}, "tags must be"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskIou(**settings)


def test_pixels_of_the_intersection_and_of_the_union_are_counted() -> None:
    """The answer holds columns 6 to 14 of the rows 2 to 8: 48 pixels, of which 4 columns lie in the square."""
    said = [[6, 2, 14, 2, 14, 8, 6, 8]]
    assert judge(said, measure="intersection") == 24 and judge(said, measure="union") == 48 + 48 - 24
    assert judge("no mask", measure="intersection") == 0 and judge("no mask", measure="union") == 48
    assert MaskIou(measure="union").range == (0.0, float("inf")) and MaskIou().range == (0.0, 1.0)
    with pytest.raises(ValueError, match="threshold goes with measures in"):
        MaskIou(measure="union", threshold=0.5)
