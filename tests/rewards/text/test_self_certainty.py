"""Self-certainty: the mean over an answer's tokens, by hand; the numbers themselves are tested with the policy."""

import random
from dataclasses import replace

import pytest
import torch

from mmrl.core.contracts import Likelihoods, RewardBatch
from mmrl.rewards.text.self_certainty import SelfCertainty
from tests.rewards.example import Example, answers


def batch_of(*rows: list[float], weights: str = "trained") -> RewardBatch:
    """Answers whose tokens have these self-certainties."""
    table = torch.zeros(len(rows), max(map(len, rows)))
    for number, row in enumerate(rows):
        table[number, : len(row)] = torch.tensor(row)
    batch = answers([""] * len(rows), num_tokens=torch.tensor(list(map(len, rows))))
    return replace(batch, likelihoods={weights: Likelihoods(torch.zeros_like(table), None, table)})


def random_batch(given: random.Random) -> RewardBatch:
    return batch_of(*([given.random() * 20 for _ in range(given.randrange(9))] for _ in range(12)))


EXAMPLE = Example(random_batch=random_batch)  # no truth: it is how sure the policy is


def test_it_is_the_mean_over_the_tokens_of_each_answer() -> None:
    assert SelfCertainty().score(batch_of([1.0, 2.0, 6.0], [4.0], [])).tolist() == [3, 4, 0]
    longer = batch_of([1.0, 3.0], [4.0])
    longer = replace(longer, outputs=replace(longer.outputs, num_tokens=torch.tensor([1, 1])))
    assert SelfCertainty().score(longer).tolist() == [1, 4], "what stands behind the last token counts nothing"


def test_the_weights_are_those_that_the_setting_names() -> None:
    reward = SelfCertainty(weights="reference")
    assert reward.needs == {"num_tokens", "self_certainty.reference"}
    assert reward.score(batch_of([5.0], weights="reference")).tolist() == [5]


def test_likelihoods_without_it_cannot_be_judged() -> None:
    batch = replace(batch_of([1.0]), likelihoods={"trained": Likelihoods(torch.zeros(1, 1))})
    with pytest.raises(ValueError, match="the likelihoods by the trained weights have no self-certainty"):
        SelfCertainty().score(batch)
