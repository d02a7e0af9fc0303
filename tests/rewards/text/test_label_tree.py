"""Labels in levels: coarse before fine."""

import json
import random
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Prompt
from mmrl.rewards.text.label_tree import LabelTree, share_right
from tests.rewards.example import Example, answers
from tests.rewards.hostile import HOSTILE, REPEATED, TEXTS, check_scores, megabytes, shown

FAULTS = {"body": ["hand", "face"], "overlap": []}


def said(labels: Any) -> str:
    return f"<answer>{json.dumps(labels)}</answer>"


def judge(labels: Any, faults: Any, **settings: Any) -> float:
    found: float = LabelTree(**settings).score(answers([said(labels)], {"faults": faults})).item()
    return found


def random_batch(random: random.Random) -> RewardBatch:
    trees = [
        {one: random.sample(["hand", "face", "foot"], random.randint(0, 2))
         for one in random.sample(["body", "overlap", "animal"], random.randint(0, 3))}
        for _ in range(6)
    ]  # fmt: skip
    return answers([*map(said, trees), said(FAULTS), "nothing"], {"faults": FAULTS})


EXAMPLE = Example(random_batch=random_batch, best=lambda: answers([said(FAULTS)] * 4, {"faults": FAULTS}))


def test_scores_by_hand() -> None:
    """Weights 8, 4, 2, 1 over 15, as equation 3 of the paper has them for n = 3."""
    assert judge(FAULTS, FAULTS) == 1
    assert judge({}, {}) == 1, "nothing is wrong, and nothing is named"
    # body is right and overlap missed: 0.6 - 0.3; of two finer ones one is right, one missed: 0.6 - 0.3
    assert judge({"body": ["hand"]}, FAULTS) == pytest.approx((8 + 4 + 2 * 0.3 + 0.3) / 15)
    # the finer labels stand below a wrong one: 2 missed and 1 too many
    assert judge({"animal": ["hand"], "body": []}, FAULTS) == pytest.approx((8 + 4 + 0 + 0) / 15)
    assert judge({}, FAULTS) == pytest.approx(8 / 15), "the form alone"
    assert judge({"body": []}, {}) == pytest.approx((8 + 0 + 0 + 1) / 15), "no finer label is right of none"
    assert judge({"body": [], "overlap": [], "x": []}, FAULTS) == pytest.approx((8 + 4 + 2 * (1.2 - 0.3)) / 15)
    assert judge({"body": ["hand"]}, FAULTS, weights=(0, 1, 0, 1)) == pytest.approx((1 + 0.3) / 2)


def test_a_level_is_that_of_the_papers_counts() -> None:
    """Equation 5 from counts of right, missed and extra labels."""
    for right, missed, extra in product(range(4), range(3), range(3)):
        named = {*range(right), *range(10, 10 + extra)}
        true = {*range(right), *range(20, 20 + missed)}
        if missed == extra == 0:
            expected = 1.0
        elif right + extra == 0:
            expected = 0.0
        else:
            expected = sorted((0.0, 0.6 * right - 0.3 * (missed + extra), 1.0))[1]
        assert share_right(named, true) == pytest.approx(expected)


def test_capitals_and_white_space_do_not_matter() -> None:
    assert judge({" BODY ": ["Face", "hand", "hand "], "Overlap": []}, FAULTS) == 1


@pytest.mark.parametrize(
    "labels", [["body"], None, 3, {"body": "hand"}, {"body": [3]}, {"x": {}}, {"": []}, {"body": [], "Body": []}]
)  # fmt: skip
def test_what_is_no_object_of_labels_scores_nothing(labels: Any) -> None:
    assert judge(labels, FAULTS) == 0
    assert judge(labels, {}) == 0


def test_the_labels_stand_once_in_their_tag() -> None:
    texts = [json.dumps(FAULTS), said(FAULTS), said(FAULTS) * 2, "<answer>{'body': []}</answer>"]
    assert LabelTree().score(answers(texts, {"faults": FAULTS})).tolist() == [0, 1, 0, 0]
    assert LabelTree(tag=None).score(answers(texts[:2], {"faults": FAULTS})).tolist() == [1, 0]


@pytest.mark.slow
@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_any_text_has_a_score(texts: list[str]) -> None:
    check_scores(LabelTree(), answers(texts, {"faults": FAULTS}))
    check_scores(LabelTree(tag=None), answers(texts, {"faults": FAULTS}))


def test_hostile_texts_have_a_score() -> None:
    check_scores(LabelTree(tag=None), answers(HOSTILE, {"faults": FAULTS}))


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", REPEATED, ids=shown)
def test_a_megabyte_is_judged_in_time(piece: str) -> None:
    check_scores(LabelTree(tag=None), answers(megabytes(piece), {"faults": FAULTS}))


@pytest.mark.parametrize("faults", [None, ["body"], "body", {"body": "hand"}, {3: []}])
def test_targets_that_cannot_judge(faults: Any) -> None:
    with pytest.raises(ValueError, match=r"target\.faults of '\?': labels are an object of lists of texts"):
        LabelTree().check(Prompt("?", target={"faults": faults}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"weights": (0, 0, 0, 0)}, "weights must not all be 0"), ({"weights": (-1, 0, 0, 1)}, "at least 0")],
)  # fmt: skip
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelTree(**settings)
