"""The bonus for right answers of a wanted length, against hand numbers and a slow loop."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.core.plugins import build
from mmrl.rewards.text.exact_answer import ExactAnswer
from mmrl.rewards.text.length_window import LengthWindow
from mmrl.rewards.text.overlong import Overlong
from tests.parameters import in_one_test
from tests.rewards.example import Example, answers, make_batch

RIGHT, WRONG = "<answer>red</answer>", "<answer>blue</answer>"
TARGET = {"answer": "red"}


def batch_of(is_right: list[bool], lengths: list[int]) -> RewardBatch:
    return answers([RIGHT if one else WRONG for one in is_right], TARGET, num_tokens=torch.tensor(lengths))


def random_batch(rng: random.Random) -> RewardBatch:
    return batch_of([rng.random() < 0.6 for _ in range(8)], [rng.choice([1, 319, 320, 512, 513]) for _ in range(8)])


EXAMPLE = Example(
    random_batch=random_batch,
    best=lambda: batch_of([True] * 8, [400] * 8),
    settings={"reward": {"name": "exact_answer"}},
)


def judge(is_right: list[bool], lengths: list[int], **settings: Any) -> list[float]:
    scores: list[float] = LengthWindow(ExactAnswer(), **settings).score(batch_of(is_right, lengths)).tolist()
    return scores


def test_the_bonus_by_hand() -> None:
    right, wrong = True, False
    assert judge([right] * 4, [319, 320, 512, 513]) == [0, 1, 1, 0]
    assert judge([right, right, wrong, wrong], [400] * 4) == [1, 1, 0, 0]
    assert judge([right, wrong, wrong, wrong], [400] * 4) == [0, 0, 0, 0], "one right answer alone"
    assert judge([right, wrong, wrong, wrong], [400] * 4, min_right=1) == [1, 0, 0, 0]
    assert judge([right, right, wrong, wrong], [400, 1, 400, 1]) == [1, 0, 0, 0], "the right ones need not be long"
    assert judge([right] * 4, [1, 2, 3, 4], shortest=2, longest=3) == [0, 1, 1, 0]


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.integers(300, 530)), min_size=8, max_size=8), st.integers(1, 4))
def test_it_is_what_a_loop_over_groups_gives(samples: list[tuple[bool, int]], min_right: int) -> None:
    expected = []
    for start in (0, 4):
        group = samples[start : start + 4]
        enough = len([1 for right, _ in group if right]) >= min_right
        expected += [float(enough and right and 320 <= length <= 512) for right, length in group]
    is_right, lengths = zip(*samples, strict=True)
    assert judge(list(is_right), list(lengths), min_right=min_right) == expected


def test_controls_get_nothing_and_make_no_group_right() -> None:
    batch = replace(batch_of([True] * 4, [400] * 4), is_control=torch.tensor([False, True, True, True]))
    assert LengthWindow(ExactAnswer()).score(batch).tolist() == [0, 0, 0, 0]
    assert LengthWindow(ExactAnswer(), min_right=1).score(batch).tolist() == [1, 0, 0, 0]


def test_right_is_what_the_inner_reward_says_and_its_checks_and_needs_are_passed_on() -> None:
    half = build("rewards", {"name": "length_window", "reward": {"name": "text_f1"}, "threshold": 0.7})
    batch = answers(["<answer>red</answer>"] * 4, {"answer": "red house"}, num_tokens=torch.full((4,), 400))
    assert half.score(batch).tolist() == [0] * 4 and replace(half, threshold=0.6).score(batch).tolist() == [1] * 4
    assert half.needs == {"num_tokens", "texts", "target.answer"}
    with pytest.raises(ValueError, match="must have words"):
        half.check(answers([""], {"answer": "the"}).prompts[0])


@in_one_test(
    ("settings", "message"),
    [
        ({"shortest": 513}, "shortest must be at most longest, got 513 and 512"),
        ({"shortest": -1}, "shortest must be at least 0, got -1"),
        ({"min_right": 0}, "min_right must be at least 1"),
        ({"reward": LengthWindow(ExactAnswer())}, "must judge samples, got one that judges groups"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LengthWindow(**({"reward": ExactAnswer()} | settings))


def test_a_batch_without_texts_can_hold_a_reward_that_needs_none() -> None:
    batch = make_batch(Outputs(num_tokens=torch.full((4,), 400)), ["?"] * 4)
    held = LengthWindow(Overlong(1000, 500), threshold=-0.1)  # right: not punished
    assert held.score(batch).tolist() == [1] * 4
