"""The advantage of a segment is the change of the value, and only its cut points are learned from."""

import math
import random

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.spo import Spo
from mmrl.core.data import Paths
from tests.advantages.token_trees import HAND, REWARD, grown, paths_of, scores_of
from tests.parameters import in_one_test


def test_segments_get_the_value_behind_them_less_that_before_them() -> None:
    found = Spo()(scores_of(REWARD), Paths(HAND))
    assert_close(
        found, torch.tensor([[-0.25, -0.25, 0.5, 0.5], [-0.25, -0.25, -0.5, 0], [0.25, 0.25, 0, 0], [0.25, 0.25, 0, 0]])
    )


@in_one_test("seed", range(4))
def test_on_each_path_the_segments_add_up_to_the_reward_less_the_value_of_the_prompt(seed: int) -> None:
    pick = random.Random(seed)
    paths = paths_of(grown(pick)[0])
    reward = torch.tensor([pick.random() for _ in paths.edge])
    found = Spo()(scores_of(reward), paths)
    leaves = (paths.edge[:, :, None, None] == paths.edge).any(3).sum(2)  # that share the edge
    begins = torch.nn.functional.pad(leaves[:, 1:] != leaves[:, :-1], (1, 0), value=True) & (paths.edge >= 0)
    differences = reward - (found * begins).sum(1)
    assert_close(differences, differences[:1].expand_as(differences))


def test_tokens_that_were_all_but_certain_are_left_out() -> None:
    log_prob = torch.tensor([[0.95, 0.5, 0.91, 0.1]]).log().repeat(4, 1)
    log_prob[HAND < 0] = 0
    kept = Spo()
    found = kept.update_mask(scores_of(REWARD), Paths(HAND, {"log_prob": log_prob}))
    is_cut = torch.tensor([False, True, False, True])
    assert torch.equal(found, is_cut & (HAND >= 0))
    assert kept.declaration.requires == {"log_prob"}


def test_without_a_cut_everyone_takes_part_and_no_fact_is_read() -> None:
    free = Spo(cut=None)
    assert free.update_mask(scores_of(REWARD), Paths(HAND)).all() and free.declaration.requires == frozenset()
    assert Spo().update_mask(scores_of(REWARD)).all()


def test_without_shared_tokens_it_is_the_undivided_grpo() -> None:
    scores, edges = scores_of(torch.tensor([0.3, 0.9, 0.1])), torch.arange(6).view(3, 2)
    expected = Grpo(std="none", clip=None)(scores)
    assert_close(Spo(cut=None)(scores, Paths(edges)), expected[:, None].expand(3, 2))


@pytest.mark.parametrize("cut", [0, 1.1, math.nan])
def test_a_cut_is_a_probability(cut: float) -> None:
    with pytest.raises(ValueError, match="cut must be above 0 and at most 1"):
        Spo(cut=cut)
