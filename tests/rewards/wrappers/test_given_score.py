"""What the data says of the outputs that it brings."""

import random
from collections.abc import Sequence

import pytest
import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.wrappers.given_score import GivenScore
from tests.rewards.example import Example, make_batch

SCORES = (0.5, -2.0, 3.0)  # of the three outputs that each prompt brings


def brought(given: Sequence[int]) -> RewardBatch:
    outputs = Outputs(given=torch.tensor(given))
    return make_batch(outputs, ["?"] * len(given), [{"given_scores": SCORES}] * len(given))


def random_batch(random: random.Random) -> RewardBatch:
    return brought([random.randrange(-1, 3) for _ in range(8)])


EXAMPLE = Example(random_batch=random_batch, best=lambda: brought([2] * 4))


def test_each_output_has_the_score_of_its_number_and_what_was_drawn_its_own() -> None:
    assert GivenScore().score(brought([2, -1, 0, 1])).tolist() == [3.0, 0.0, 0.5, -2.0]
    assert GivenScore(drawn=-1.5).score(brought([-1, 0])).tolist() == [-1.5, 0.5]


@pytest.mark.parametrize("drawn", [float("nan"), float("inf")])
def test_a_score_of_drawn_outputs_is_finite(drawn: float) -> None:
    with pytest.raises(ValueError, match="drawn must be a finite number"):
        GivenScore(drawn=drawn)
