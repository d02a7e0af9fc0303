"""The environment's own reward of each turn; what a broken environment means is in test_episode_success.py."""

import random

import torch

from mmrl.core.contracts import RewardBatch
from mmrl.core.data import Outputs
from mmrl.rewards.episodes.step_reward import StepReward
from tests.rewards.example import Example, make_batch


def batch(rewards: list[float]) -> RewardBatch:
    outputs = Outputs(step_rewards=torch.tensor(rewards), outcomes=(None,) * (len(rewards) - 1) + ("done",))
    return make_batch(outputs, ["go"] * len(rewards))


def random_batch(random: random.Random) -> RewardBatch:
    return batch([random.uniform(-5, 5) for _ in range(8)])


EXAMPLE = Example(random_batch=random_batch)  # no best: an environment may always give more


def test_every_turn_has_the_reward_of_its_own_step() -> None:
    assert StepReward().score(batch([0.5, 1.0, -3.25, 0.0])).tolist() == [0.5, 1.0, -3.25, 0.0]


def test_rewards_are_judged_in_float32() -> None:
    outputs = Outputs(step_rewards=torch.tensor([1, 2]), outcomes=(None, "done"))
    assert StepReward().score(make_batch(outputs, ["go"] * 2)).dtype == torch.float32
