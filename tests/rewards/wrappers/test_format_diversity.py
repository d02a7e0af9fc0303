"""format_diversity by hand, and against the formula of Ada-GRPO in a loop."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.contracts import ConfigError, RewardBatch
from tests.rewards.example import Example, answers
from tests.rewards.inner import LAST, wrapped

MARKS = ("<COT>", "<CODE>", "<ANSWER>", "<LONG_COT>")


def marked(source: random.Random) -> RewardBatch:
    """Twelve answers with a mark or none, that end with a number in [0, 1]."""
    numbers = [0, 1, *(source.random() for _ in range(10))]
    return answers([f"{source.choice([*MARKS, ' <COT>', 'Well'])} {number}" for number in numbers])


# at the end of its decay, where it is the inner reward
EXAMPLE = Example(
    random_batch=lambda source: replace(marked(source), iteration=9),
    best=lambda: replace(answers(["<COT> 1", "<CODE> 1"]), iteration=9),
    settings={"reward": LAST, "last": 9, "marks": MARKS},
)


def slow(texts: Sequence[str], group: Sequence[int], iteration: int, last: int) -> list[float]:
    """Returns reward (1 + (G / F - 1) (1 + cos(pi t / T)) / 2), by lists."""
    starts = [next((mark for mark in MARKS if text.strip().startswith(mark)), None) for text in texts]
    decay = 0.5 * (1 + math.cos(math.pi * min(iteration, last) / last))
    found = []
    for text, start, own in zip(texts, starts, group, strict=True):
        members = [s for s, g in zip(starts, group, strict=True) if g == own]
        found.append(float(text.split()[-1]) * (1 + (len(members) / members.count(start) - 1) * decay))
    return found


@pytest.mark.parametrize("iteration", [0, 3, 8, 12])
def test_it_is_the_formula_in_a_loop(iteration: int) -> None:
    batch = replace(marked(random.Random(iteration)), iteration=iteration)
    assert batch.outputs.texts is not None
    got = wrapped("format_diversity", reward=LAST, marks=list(MARKS), last=12).score(batch)
    expected = slow(batch.outputs.texts, batch.group.tolist(), iteration, 12)
    assert_close(got, torch.tensor(expected))
    if iteration == 12:
        assert got.tolist() == pytest.approx([float(text.split()[-1]) for text in batch.outputs.texts])


def test_a_rare_format_counts_more_by_hand() -> None:
    """Of four answers one is code: 4 times its reward at first, 2.5 times half way, once at the end."""
    reward = wrapped("format_diversity", reward=LAST, marks=["<CODE>", "<COT>"], last=4, shape="linear")
    batch = answers(["<CODE> 1", "<COT> 1", "<COT> 0.5", "<COT> 0"])
    assert reward.score(batch).tolist() == pytest.approx([4, 4 / 3, 2 / 3, 0])
    assert reward.score(replace(batch, iteration=2)).tolist() == pytest.approx([2.5, 7 / 6, 7 / 12, 0])
    assert reward.score(replace(batch, iteration=7)).tolist() == [1, 1, 0.5, 0]


def test_without_marks_the_form_of_an_answer_is_its_format() -> None:
    reward = wrapped("format_diversity", reward=LAST, last=4)
    batch = answers(["<think>so</think> 1", "<think>and now</think> 1", "1", "<think>or</think> 1"])
    assert reward.score(batch).tolist() == pytest.approx([4 / 3, 4 / 3, 4, 4 / 3])


def test_the_longest_mark_is_the_one_that_counts() -> None:
    reward = wrapped("format_diversity", reward=LAST, marks=["A", "AB"], last=4)
    assert reward.score(answers(["AB 1", "A 1", "A 1", "AB 1"])).tolist() == [2, 2, 2, 2]


def test_controls_are_no_members() -> None:
    reward = wrapped("format_diversity", reward=LAST, marks=list(MARKS), last=4)
    batch = replace(
        answers(["<COT> 1", "<COT> 1", "<CODE> 1", "<CODE> 1"]), is_control=torch.tensor([False, False, False, True])
    )
    assert reward.score(batch).tolist() == pytest.approx([1.5, 1.5, 3, 1])


def test_it_says_that_it_changes_and_what_it_refuses() -> None:
    reward = wrapped("format_diversity", last=4)
    assert reward.declaration.follows_iteration and reward.range == (0, math.inf) and "texts" in reward.needs
    with pytest.raises(ConfigError, match="0 <= first < last"):
        wrapped("format_diversity", last=0)
    with pytest.raises(ConfigError, match="the inner reward must be at least 0"):
        wrapped("format_diversity", last=4, reward={"name": "repetition"})
    for wrong in (["<COT>", "<COT>"], [""], [" <COT>"]):
        with pytest.raises(ConfigError, match="marks must be different texts"):
            wrapped("format_diversity", last=4, marks=wrong)
