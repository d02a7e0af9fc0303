"""The sum over the comparisons of a decision, against the authors' two loops."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.advantages.granular import Granular
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.rloo import Rloo
from mmrl.core.data import Paths, Scores
from mmrl.core.keys import subgroup
from mmrl.core.plugins import build

CHILDREN, STRIDES = 5, 3
REWARD = torch.randn(2, STRIDES, CHILDREN, generator=torch.Generator().manual_seed(4))


def scores(reward: Tensor = REWARD, valid: Tensor | None = None) -> Scores:
    """Returns two prompt indices, each child finished with three strides, which are groups of their own."""
    names = [subgroup(draw, stride) for draw in (3, 8) for stride in range(STRIDES) for _ in range(CHILDREN)]
    numbers = torch.arange(len(names))
    valid = torch.ones(len(names), dtype=torch.bool) if valid is None else valid
    group, zeros = torch.tensor(names), torch.zeros_like(numbers)
    return Scores(reward.reshape(-1, 1), ("r",), (1.0,), valid, group, numbers, zeros)


EDGES = torch.arange(CHILDREN).repeat(2 * STRIDES)[:, None]


def test_the_normalised_rewards_of_all_strides_are_added_up() -> None:
    expected = torch.zeros(2, CHILDREN)
    for draw in range(2):
        for rewards in REWARD[draw]:
            expected[draw] += (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    got = Granular(clip=None)(scores(), Paths(EDGES)).view(2, STRIDES, CHILDREN)
    assert_close(got, expected[:, None].expand_as(got))


def test_the_sum_is_clipped_not_its_parts() -> None:
    free, clipped = (Granular(clip=clip)(scores(), Paths(EDGES)) for clip in (None, 1.5))
    assert free.abs().max() > 1.5
    assert_close(clipped, free.clamp(-1.5, 1.5))


def test_with_one_stride_it_is_grpo() -> None:
    group = torch.tensor([1] * 5 + [2] * 5)
    numbers = torch.arange(10)
    one = Scores(REWARD[:, 0].reshape(-1, 1), ("r",), (1.0,), group > 0, group, numbers, torch.zeros_like(numbers))
    grpo = Grpo(is_unbiased=True, epsilon=1e-8, clip=5.0)(one)
    assert_close(Granular()(one, Paths(numbers[:, None] % 5)), grpo[:, None])
    assert_close(Granular()(one), grpo[:, None])


def test_samples_of_one_group_that_share_a_decision_are_averaged_there() -> None:
    """Group 0 has rewards 0, 2, 4 behind decisions 7, 7, 8; group 1 has 1, 3 behind 7, 8."""
    group = torch.tensor([subgroup(5, 0)] * 3 + [subgroup(5, 1)] * 2)
    reward, numbers = torch.tensor([0.0, 2, 4, 1, 3]), torch.arange(5)
    given = Scores(reward[:, None], ("r",), (1.0,), group > 0, group, numbers, torch.zeros_like(numbers))
    got = Granular(inner=Rloo())(given, Paths(torch.tensor([7, 7, 8, 7, 8])[:, None]))
    assert_close(got[:, 0], torch.tensor([-3.5, -3.5, 5, -3.5, 5]))  # (-3 + 0) / 2 - 2, 3 + 2


def test_an_invalid_sample_says_nothing_and_gets_0() -> None:
    valid = torch.arange(2 * STRIDES * CHILDREN) != 7
    got = Granular(clip=None)(scores(valid=valid), Paths(EDGES)).view(2, STRIDES, CHILDREN)
    strides = [REWARD[0, stride] for stride in (0, 2)]
    expected = sum(((r - r.mean()) / (r.std() + 1e-8))[2] for r in strides)
    assert_close(got[0, :, 2], torch.stack([expected, torch.zeros(()), expected]))  # type: ignore[list-item]


def test_clips_are_above_0() -> None:
    with pytest.raises(ValueError, match="clip must be above 0, or null, got 0"):
        build("advantages", {"name": "granular", "clip": 0})
