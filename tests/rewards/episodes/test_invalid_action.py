"""A turn costs 1 where its answer is no action."""

import random

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.parsing.actions.action import Action
from mmrl.rewards.episodes.invalid_action import InvalidAction
from tests.rewards.example import Example, make_batch

WAIT = Action("wait")


def batch(actions: list[Action | None]) -> RewardBatch:
    return make_batch(Outputs(actions=tuple(actions)), ["go"] * len(actions))


def random_batch(random: random.Random) -> RewardBatch:
    return batch([random.choice([None, WAIT]) for _ in range(8)])


EXAMPLE = Example(random_batch=random_batch, best=lambda: batch([WAIT]))


def test_an_answer_that_is_no_action_costs_one() -> None:
    assert InvalidAction().score(batch([WAIT, None, WAIT, None])).tolist() == [0.0, -1.0, 0.0, -1.0]
