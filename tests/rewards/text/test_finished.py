"""Answers that ended, and answers that were cut."""

import random
from collections.abc import Callable

import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.text.finished import Finished
from tests.rewards.example import Example
from tests.rewards.example import make_batch as batch_of


def batch(ended: list[bool]) -> RewardBatch:
    return batch_of(Outputs(is_finished=torch.tensor(ended)), ["go on"] * len(ended))


def random_batch(random: random.Random) -> RewardBatch:
    return batch([True, False, *(random.random() < 0.5 for _ in range(6))])


EXAMPLE = Example(random_batch=random_batch, best=lambda: batch([True] * 4))


def test_an_answer_that_was_cut_scores_0(make_batch: Callable[..., RewardBatch]) -> None:
    batch = make_batch(Outputs(texts=("a", "b", ""), is_finished=torch.tensor([True, False, True])), ["x", "y", "z"])
    assert Finished().score(batch).tolist() == [1, 0, 1]
