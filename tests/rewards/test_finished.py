"""Answers that ended, and answers that were cut."""

from collections.abc import Callable

import torch

from mmrl.contracts import RewardBatch
from mmrl.data import Outputs
from mmrl.rewards.finished import Finished


def test_an_answer_that_was_cut_scores_0(make_batch: Callable[..., RewardBatch]) -> None:
    batch = make_batch(Outputs(texts=("a", "b", ""), is_finished=torch.tensor([True, False, True])), ["x", "y", "z"])
    assert Finished().score(batch).tolist() == [1, 0, 1]
