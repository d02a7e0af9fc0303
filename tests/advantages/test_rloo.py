"""Leave-one-out advantages against a slow loop."""

import math
from dataclasses import replace

import torch
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.rloo import Rloo
from mmrl.core.data import Scores

GROUP = torch.tensor([9, 2, 9, 2, 9, 5])
REWARD = torch.tensor([1.0, 10.0, 2.0, 14.0, 6.0, 100.0])


def _scores(reward: torch.Tensor, group: torch.Tensor, invalid: tuple[int, ...] = ()) -> Scores:
    numbers = torch.arange(len(group))
    valid = torch.tensor([n not in invalid for n in range(len(group))])
    return Scores(reward[:, None], ("r",), (1.0,), valid, group, numbers, numbers)


def test_each_reward_is_compared_with_the_mean_of_the_others() -> None:
    expected = []
    for n in range(6):
        others = [float(REWARD[m]) for m in range(6) if m != n and GROUP[m] == GROUP[n]]
        expected.append(float(REWARD[n]) - sum(others) / len(others) if others else 0.0)
    assert expected == [-3, -4, -1.5, 4, 4.5, 0]
    assert_close(Rloo()(_scores(REWARD, GROUP)), torch.tensor(expected))


def test_it_is_the_centred_reward_times_n_over_n_minus_one() -> None:
    centred = Grpo(std="none", clip=None)(_scores(REWARD, GROUP))
    assert_close(Rloo()(_scores(REWARD, GROUP)), centred * torch.tensor([1.5, 2, 1.5, 2, 1.5, 1]))


def test_invalid_samples_are_not_among_the_others() -> None:
    reward = torch.tensor([1.0, math.nan, 5.0, 3.0, math.nan])
    got = Rloo()(_scores(reward, torch.tensor([0, 0, 0, 1, 1]), invalid=(1, 4)))
    assert got.tolist() == [-4, 0, 4, 0, 0]


def test_of_an_episode_the_others_are_the_turns_of_other_episodes() -> None:
    """Else a turn would be compared with what its own episode got."""
    made = _scores(torch.tensor([1.0, 1.0, 0.0, 3.0, 5.0]), torch.tensor([7, 7, 7, 7, 2]))
    made = replace(made, episode=torch.tensor([4, 4, 6, 9, 1]), turn=torch.tensor([0, 1, 0, 0, 0]))
    assert_close(Rloo()(made), torch.tensor([-0.5, -0.5, -5 / 3, 7 / 3, 0.0]))
    assert (Rloo()(made.select(torch.tensor([0, 1]))) == 0).all()


def test_equal_rewards_give_exactly_zero() -> None:
    for size in (3, 7, 24):
        assert (Rloo()(_scores(torch.full((size,), 0.1), torch.zeros(size, dtype=torch.int64))) == 0).all()
