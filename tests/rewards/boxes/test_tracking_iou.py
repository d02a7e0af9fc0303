"""Tracks against hand numbers and torchvision, and what is no track of these frames."""

import json
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.ops import box_iou

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.parsing.coordinates import Canvas, Convention
from mmrl.rewards.boxes.tracking_iou import TrackingIou
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

FRAME = Canvas((100, 100), (112, 112), "original")
TRACK = [[0, 0, 10, 10], [10, 0, 20, 10], None, [30, 30, 50, 40]]


def batch(texts: list[str], track: Any = TRACK, canvas: Canvas | None = FRAME) -> RewardBatch:
    return answers(texts, {"track": track}, canvases=(canvas,) * len(texts))


def written(track: Any) -> str:
    return f"<think>it moves</think><answer>{json.dumps(track)}</answer>"


def judge(track: Any, true: Any = TRACK, canvas: Canvas | None = FRAME, **settings: Any) -> float:
    text = track if isinstance(track, str) else written(track)
    return float(TrackingIou(**settings).score(batch([text], true, canvas)))


def random_batch(random: random.Random) -> RewardBatch:
    spread = [0, 0, 1, 3, 20, 60]
    tracks = [
        [box and [side + random.randint(0, reach) for side in box] for box in TRACK]
        for reach in random.choices(spread, k=6)
    ]
    return batch([written(track) for track in tracks] + [written(TRACK), written(TRACK[:3])])


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: batch([written(TRACK), f"<answer>```json\n{json.dumps(TRACK)}\n```</answer>"] * 2),
)


def test_scores_by_hand() -> None:
    # right; half covered; seen where it is hidden; corners swapped
    said = [[0, 0, 10, 10], [10, 0, 20, 5], [0, 0, 1, 1], [50, 40, 30, 30]]
    assert judge(said) == pytest.approx((1 + 0.5 + 0 + 0) / 4)
    assert judge([None, None, None, [30, 30, 50, 40]]) == pytest.approx(2 / 4)
    assert judge(TRACK) == 1


BOXES = st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 30), st.integers(1, 30)).map(
    lambda one: [one[0], one[1], one[0] + one[2], one[1] + one[3]]
)


@pytest.mark.slow
@given(st.lists(st.tuples(BOXES, BOXES), min_size=1, max_size=8))
def test_the_mean_is_torchvisions(pairs: list[tuple[list[int], list[int]]]) -> None:
    said, true = ([pair[side] for pair in pairs] for side in (0, 1))
    overlaps = box_iou(torch.tensor(said).double(), torch.tensor(true).double()).diagonal()
    assert judge(said, true) == pytest.approx(float(overlaps.mean()), abs=1e-6)


@in_one_test(
    "text",
    [
        written(TRACK[:3]),
        written([*TRACK, TRACK[0]]),
        written({"0": TRACK[0]}),
        written([[[0, 0, 10, 10]]] * 4),
        written([[0, 0, 10, "10"]] * 4),
        written([[0, 0, 10]] * 4),
        written([[0, 0, 10, True]] * 4),
        written([False] * 4),
        written(TRACK) * 2,
        written(TRACK).replace("]]", "]"),
        json.dumps(TRACK),
        "<answer>[(0, 0, 10, 10)] * 4</answer>",
        "",
    ],
)
def test_what_is_no_track_scores_0(text: str) -> None:
    assert judge(text) == 0


def test_corners_that_are_both_swapped_overlap_nothing() -> None:
    """In VideoChat-R1's code two sides below 0 have an area above 0."""
    swapped = [[x2, y2, x1, y1] for x1, y1, x2, y2 in (TRACK[0], TRACK[1])]  # type: ignore[misc]  # two boxes
    assert judge(swapped, TRACK[:2]) == 0


@in_one_test("convention", ["original", "resized", "thousand", "unit"])
def test_the_truth_in_any_unit_scores_the_most(convention: Convention) -> None:
    canvas = Canvas((2000, 1000), (1988, 1008), convention)
    track = [[500, 250, 1500, 750], [600, 250, 1600, 750]]
    said = [[round(side, 3) for side in canvas.box_to_model((x1, y1, x2, y2))] for x1, y1, x2, y2 in track]
    assert judge(said, track, canvas) == pytest.approx(1, abs=1e-2)


def test_a_video_has_no_image_whose_pixels_could_be_meant() -> None:
    with pytest.raises(ValueError, match="has no image that coordinates could be of"):
        judge(TRACK, canvas=None)
    assert judge(TRACK, canvas=None, units="target") == 1
    assert TrackingIou(units="target").needs == {"texts", "target.track"}


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    check_scores(TrackingIou(), batch(texts))
    check_scores(TrackingIou(tag=None), batch(texts, [None]))


def test_hostile_texts_have_a_score() -> None:
    check_scores(TrackingIou(), batch(list(HOSTILE)))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(TrackingIou(tag=None), batch(list(megabytes(piece))))


@in_one_test("track", [None, [], [3], "track", [[0, 0, 0, 1]], [[0, 0, float("nan"), 1]], {"0": [0, 0, 1, 1]}])
def test_targets_that_cannot_judge(track: Any) -> None:
    for score in (lambda: judge("no", track), lambda: TrackingIou().check(Prompt("?", target={"track": track}))):
        with pytest.raises(ValueError, match=r"target\.track must be"):
            score()


@pytest.mark.parametrize(
    ("settings", "message"), [({"units": "px"}, "units must be one of"), ({"tag": ""}, "tags must")]
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrackingIou(**settings)
