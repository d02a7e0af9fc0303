"""Temporal IoU against a fine grid of times and numbers by hand."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.plugins import build
from mmrl.rewards.video.temporal_iou import TemporalIou
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

Make = Callable[..., RewardBatch]
WHOLE = st.integers(0, 40)
TARGET = {"span": [2, 6], "duration": 40}


def random_batch(given: random.Random) -> RewardBatch:
    """The true span with ends that are more and more off, and no span."""
    texts = ["<answer>soon</answer>"]
    for row in range(7):
        start, length = abs(2 + given.gauss(0, row / 2)), 0.1 + abs(3.9 + given.gauss(0, row / 2))
        texts.append(f"<answer>{start:.2f} to {start + length:.2f}</answer>")
    return answers(texts, TARGET)


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers(["<think>1 to 9</think><answer>2 to 6</answer>"] * 4, TARGET)
)


def scores(make_batch: Make, answers: list[str], target: dict[str, Any], **settings: Any) -> list[float]:
    batch = make_batch(Outputs(texts=tuple(answers)), ["when?"] * len(answers), [target] * len(answers))
    found: list[float] = TemporalIou(**({"tag": None} | settings)).score(batch).tolist()
    return found


@given(start=WHOLE, length=st.integers(1, 20), true_start=WHOLE, true_length=st.integers(1, 20))
def test_iou_counts_moments_of_a_fine_grid(
    make_batch: Make, start: int, length: int, true_start: int, true_length: int
) -> None:
    """In tenths of a second, as sets of moments: a whole grid has no rounding."""
    a, b = set(range(start, start + length)), set(range(true_start, true_start + true_length))
    answer = f"{start / 10} to {(start + length) / 10}"
    target = {"span": [true_start / 10, (true_start + true_length) / 10], "duration": 10.0}
    iou = len(a & b) / len(a | b)
    assert scores(make_batch, [answer], target) == pytest.approx([iou], abs=1e-6)
    hull = max(*a, *b) - min(*a, *b) + 1
    giou = iou - (hull - len(a | b)) / hull
    assert scores(make_batch, [answer], target, kind="giou") == pytest.approx([(1 + giou) / 2], abs=1e-6)
    aware = iou * (1 - abs(start - true_start) / 100) * (1 - abs(start + length - true_start - true_length) / 100)
    got = scores(make_batch, [answer], target, kind="timestamp_aware")
    assert got == pytest.approx([aware], abs=1e-6) and got[0] <= iou + 1e-6


def test_an_end_that_is_off_by_more_than_the_clip_gives_nothing_and_not_less(make_batch: Make) -> None:
    target = {"span": [1, 2], "duration": 2.0}
    assert scores(make_batch, ["0 to 9"], target, kind="timestamp_aware") == [0]


def test_numbers_by_hand(make_batch: Make) -> None:
    target = {"span": [2, 6], "duration": 8}
    answers = ["2 to 6", "2 to 4", "4 and 8", "6 - 7", "10 to 12", "6 to 2", "3 to 3", "soon", ""]
    assert scores(make_batch, answers, target) == pytest.approx([1, 0.5, 1 / 3, 0, 0, 0, 0, 0, 0])
    assert scores(make_batch, answers[:2], target, kind="timestamp_aware") == pytest.approx([1, 0.5 * 0.75])
    # 6-7 touches, hull 2..7, union 5; 10-12: hull 10, union 6
    assert scores(make_batch, answers[3:5], target, kind="giou") == pytest.approx([0.5, (1 - 4 / 10) / 2])
    assert scores(make_batch, answers[:3], target, threshold=0.5) == [1, 1, 0]


def test_the_answer_stands_in_its_tag(make_batch: Make) -> None:
    thought = "<think>0 to 1</think><answer>2 to 6</answer>"
    assert scores(make_batch, [thought, "2 to 6"], {"span": [2, 6]}, tag="answer") == [1, 0]


def test_no_value_is_carried_from_one_sample_to_the_next(make_batch: Make) -> None:
    answers = ["2 to 6", "nothing", "2 to 4", "5 to 5"]
    forward = scores(make_batch, answers, {"span": [2, 6]})
    assert scores(make_batch, answers[::-1], {"span": [2, 6]}) == forward[::-1]


@pytest.mark.parametrize(
    "span", [[2], [6, 2], [2, 2], ["2", "6"], [-1, 2], [0, math.inf], [0, math.nan], None, [True, 3]], ids=str
)
def test_a_target_that_is_no_span_is_an_error(make_batch: Make, span: Any) -> None:
    with pytest.raises(ValueError, match=r"target.span must be \[start, end\] in seconds"):
        scores(make_batch, ["1 to 2"], {"span": span})


def test_a_missing_duration_is_an_error_only_where_it_is_needed(make_batch: Make) -> None:
    assert scores(make_batch, ["2 to 6"], {"span": [2, 6]}) == [1]
    with pytest.raises(ValueError, match=r"needs target\.duration in seconds, above 0, got None"):
        scores(make_batch, ["2 to 6"], {"span": [2, 6]}, kind="timestamp_aware")


@pytest.mark.parametrize("wrong", [{"kind": "iuo"}, {"threshold": 0.0}, {"threshold": 1.5}], ids=str)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TemporalIou(**wrong)


def test_the_score_is_float32(make_batch: Make) -> None:
    batch = make_batch(Outputs(texts=("<answer>2 to 6</answer>",)), ["when?"], [{"span": (2, 6)}])
    assert TemporalIou().score(batch).dtype == torch.float32


def test_a_prompt_is_checked_as_it_is_judged() -> None:
    reward, prompt = TemporalIou(kind="timestamp_aware"), answers(["1 to 2"], {"span": [2, 6]}).prompts[0]
    TemporalIou().check(prompt)
    with pytest.raises(ValueError, match=r"needs target\.duration"):
        reward.check(prompt)
    assert reward.needs - TemporalIou().needs == {"target.duration"}
    assert build("rewards", {"name": "temporal_iou"}).needs == {"texts", "target.span"}


@given(st.lists(TEXTS, min_size=1, max_size=3), st.sampled_from(["iou", "giou", "timestamp_aware"]))
def test_any_text_has_a_score(texts: list[str], kind: Any) -> None:
    check_scores(TemporalIou(kind=kind, tag=None), answers(texts, TARGET))


def test_hostile_texts_have_scores() -> None:
    check_scores(TemporalIou(kind="giou"), answers(HOSTILE, TARGET))
    check_scores(TemporalIou(kind="timestamp_aware", tag=None), answers(HOSTILE, TARGET))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_a_score(piece: str) -> None:
    check_scores(TemporalIou(), answers(megabytes(piece), TARGET))
    check_scores(TemporalIou(tag=None), answers(megabytes(piece), TARGET))
