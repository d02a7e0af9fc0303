"""The gain of each turn by hand; the policy's numbers are tested in tests/training/test_turn_answers.py."""

import math
import random
from dataclasses import replace

import pytest
import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs, Prompt
from mmrl.core.reward_batches import select
from mmrl.rewards.episodes.information_gain import InformationGain
from tests.rewards.example import Example, make_batch


def batch_of(*turns: tuple[float, float | None], weights: str = "trained") -> RewardBatch:
    """Turns with these probabilities of the right answer before and after each; None behind the last turn."""
    batch = make_batch(Outputs(), ["?"] * len(turns), [{"answer": "red"}] * len(turns))
    pairs = torch.tensor([[before, math.nan if after is None else after] for before, after in turns])
    return replace(batch, turn_answer={weights: pairs.log()})


def random_batch(given: random.Random) -> RewardBatch:
    ends = [(0.001, 0.999), (0.999, 0.001), (0.5, None)]
    return batch_of(*[(given.random() + 1e-6, given.random() + 1e-6) for _ in range(9)], *ends)


EXAMPLE = Example(random_batch=random_batch)  # no truth: it is what the policy learns from what it does


def test_it_is_the_rise_of_the_probability_and_the_last_turn_has_none() -> None:
    scores = InformationGain().score(batch_of((0.1, 0.4), (0.4, 0.3), (0.3, None)))
    assert scores.tolist() == pytest.approx([0.3, -0.1, 0])
    assert InformationGain(weights="reference").score(batch_of((0.5, 1.0), weights="reference")).item() == 0.5


def test_turns_can_be_judged_apart() -> None:
    batch = select(batch_of((0.1, 0.4), (0.4, None)), torch.tensor([0]))
    assert InformationGain().score(batch).tolist() == pytest.approx([0.3])


def test_an_answer_that_no_policy_can_give_is_not_judged() -> None:
    with pytest.raises(ValueError, match="cannot give the right answer 'red'"):
        InformationGain().score(batch_of((math.nan, 0.5)))
    with pytest.raises(ValueError, match="must be a text or a list of texts, got 3"):
        InformationGain().check(Prompt("?", target={"answer": 3}))
