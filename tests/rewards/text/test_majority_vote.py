"""Majorities by hand: ties, empty groups, texts that do not vote."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.parsing.coordinates import Canvas
from mmrl.rewards.text.majority_vote import MajorityVote
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown


def random_batch(given: random.Random) -> RewardBatch:
    """Few different answers, some of which cannot be read."""
    texts = given.choices(["<answer>red</answer>", "<answer>3</answer>", "<answer>3.0</answer>", "red"], k=12)
    return answers(texts)


EXAMPLE = Example(
    random_batch=random_batch, best=lambda: answers(["<answer>red</answer>", "<answer> RED</answer>"] * 4)
)


def judge(texts: list[str], groups: list[int] | None = None, **settings: Any) -> list[float]:
    batch = replace(answers(texts), group=torch.tensor(groups or [0] * len(texts)))
    found: list[float] = MajorityVote(**({"tag": None} | settings)).score(batch).tolist()
    return found


@pytest.mark.parametrize(
    ("texts", "scores"),
    [
        (["a", "a", "b"], [1, 1, 0]),
        (["a", "b", "c", "c"], [0, 0, 1, 1]),
        (["a", "b"], [0, 0]),  # a tie
        (["a", "a", "b", "b", "c"], [0, 0, 0, 0, 0]),
        (["a", "b", "c"], [0, 0, 0]),
        (["a"], [1]),  # a group of one
        (["", " ", "\n"], [0, 0, 0]),  # nobody votes
        (["", "", "a"], [0, 0, 1]),  # no answer is none, however many give it
        (["3", "3.0", "+3", "4"], [1, 1, 1, 0]),
        (["0", "-0", "4"], [1, 1, 0]),
        (["A  b", "a B", "ab"], [1, 1, 0]),
        (["1, 2", "1,2", "1"], [0, 0, 0]),  # only one number alone is a number
    ],
    ids=range(12),
)
def test_votes_by_hand(texts: list[str], scores: list[int]) -> None:
    assert judge(texts) == scores
    assert judge(texts[::-1]) == scores[::-1], "the order of samples does not decide"


def test_groups_vote_apart() -> None:
    assert judge(["a", "b", "b", "a", "b", "a"], [7, 2, 7, 2, 7, 2]) == [0, 0, 1, 1, 1, 1]


def test_a_majority_may_have_to_be_large() -> None:
    assert judge(["a", "a", "b", "c"], min_share=0.5) == [1, 1, 0, 0]
    assert judge(["a", "a", "b", "c"], min_share=0.6) == [0, 0, 0, 0]
    assert judge(["a", "a", "", ""], min_share=1.0) == [1, 1, 0, 0]  # of the votes


def test_soft_scores_are_shares() -> None:
    assert judge(["a", "a", "b", "", "c"], soft=True) == [0.5, 0.5, 0.25, 0, 0.25]
    assert judge(["a", "a", "b", "c"], soft=True, min_share=0.5) == [0.5, 0.5, 0, 0]


def test_answers_stand_in_their_tags_and_boxes() -> None:
    texts = ["<answer>a</answer>", "<think>b</think><answer>a</answer>", "a", "<answer>a</answer><answer>a</answer>"]
    assert judge(texts, tag="answer") == [1, 1, 0, 0]
    assert judge(["\\boxed{3}", "so \\boxed{3.0}", "3", "\\boxed{3} \\boxed{3}"], boxed=True) == [1, 1, 0, 0]
    assert judge(["so " * 9000 + "\\boxed{3}", "3", "\\boxed{4}", "\\boxed{3}"], boxed=True) == [1, 0, 0, 1]


def test_controls_neither_vote_nor_score() -> None:
    batch = replace(answers(["a", "b", "b", "a"]), is_control=torch.tensor([False, True, True, False]))
    assert MajorityVote(tag=None).score(batch).tolist() == [1, 0, 0, 1]


@pytest.mark.slow
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
def test_a_slow_count_agrees(texts: list[str]) -> None:
    ranked = Counter(texts).most_common()
    is_tied = len(ranked) > 1 and ranked[0][1] == ranked[1][1]
    assert judge(texts) == [float(text == ranked[0][0] and not is_tied) for text in texts]


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")], ids=str)
def test_wrong_settings_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="min_share must be at least 0 and at most 1, got"):
        MajorityVote(min_share=share)


@pytest.mark.slow
@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    for reward in (MajorityVote(), MajorityVote(tag=None, soft=True), MajorityVote(tag=None, boxed=True)):
        check_scores(reward, answers(texts))


def test_hostile_texts_have_scores() -> None:
    for reward in (MajorityVote(), MajorityVote(tag=None, boxed=True)):
        check_scores(reward, answers(HOSTILE))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_has_a_score(piece: str) -> None:
    check_scores(MajorityVote(), answers(megabytes(piece)))
    check_scores(MajorityVote(tag=None, boxed=True), answers(megabytes(piece)))


SCREEN = Canvas((200, 100), (200, 100), "original")


def places(texts: list[str], groups: list[int] | None = None, **settings: Any) -> list[float]:
    batch = replace(answers(texts, canvases=(SCREEN,) * len(texts)), group=torch.tensor(groups or [0] * len(texts)))
    found: list[float] = MajorityVote(tag=None, soft=True, **settings).score(batch).tolist()
    return found


def test_clicks_that_are_near_are_one_answer() -> None:
    # 10 pixels to the right are 0.05 of the width, 10 down 0.1 of the height; 30 and 40 pixels are too far
    near = ["(20, 50)", "(30, 50)", "(40, 50)", "(20, 90)", "none"]
    assert places(near, same="click", within=0.06) == [0.75, 0.75, 0.75, 0.25, 0]  # by a chain of two steps
    assert places(near[::-1], same="click", within=0.06) == [0, 0.25, 0.75, 0.75, 0.75]
    assert places(near, same="click", within=0.04) == [0.25, 0.25, 0.25, 0.25, 0]
    assert places(["(20, 50)", "(20, 60)"], same="click", within=0.06) == [0.5, 0.5]
    assert places(["(20, 50)", "(20, 50)"], [0, 1], same="click") == [1, 1], "groups vote apart"


def test_boxes_that_overlap_enough_are_one_answer() -> None:
    boxes = ["[0, 0, 10, 10]", "[0, 0, 10, 9]", "[50, 50, 60, 60]", "[10, 10, 0, 0]"]  # the IoU of the first two is 0.9
    assert places(boxes, same="box", within=0.11) == pytest.approx([2 / 3, 2 / 3, 1 / 3, 0])
    assert places(boxes, same="box", within=0.09) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


def test_places_need_the_image_and_are_no_formulas() -> None:
    assert "canvases" in MajorityVote(same="box").needs
    with pytest.raises(ValueError, match="boxed is for same 'text', got same 'click'"):
        MajorityVote(same="click", boxed=True)
