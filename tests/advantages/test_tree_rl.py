"""Values of places at the root, behind a segment and before it, by hand and by a walk through the tree."""

import random

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.tree_rl import TreeRl
from mmrl.core.data import Paths
from tests.advantages.token_trees import HAND, REWARD, Node, grown, leaves_of, paths_of, scores_of
from tests.parameters import in_one_test


def test_global_and_local_advantages_are_those_worked_out_by_hand() -> None:
    # values: root 0.75, behind the beginnings 0.5 and 1; ends 1, 0, 1, 1
    shared = 2**-0.5
    expected = [
        [-0.5 * shared, -0.5 * shared, 0.25 + 0.5, 0.25 + 0.5],
        [-0.5 * shared, -0.5 * shared, -0.75 - 0.5, 0],
        [0.5 * shared, 0.5 * shared, 0.25, 0.25],
        [0.5 * shared, 0.5 * shared, 0.25, 0],
    ]
    assert_close(TreeRl()(scores_of(REWARD), Paths(HAND)), torch.tensor(expected))


def test_its_parts_have_weights_and_the_number_of_leaves_a_power() -> None:
    only_local = TreeRl(global_weight=0, leaf_power=0.5)(scores_of(REWARD), Paths(HAND))
    assert_close(only_local[0], torch.tensor([-0.25 * 2**0.5, -0.25 * 2**0.5, 0.5, 0.5]))
    only_global = TreeRl(local_weight=0, leaf_power=0)(scores_of(REWARD), Paths(HAND))
    assert_close(only_global[:, 0], torch.tensor([-0.25, -0.25, 0.25, 0.25]))


def walk(children: list[Node], rewards: dict[int, float], start: float, root: float, found: dict[int, float]) -> None:
    """Returns the formula at every edge, place by place."""
    for stretch, below in children:
        ends = [rewards[path[-1]] for path in (leaves_of(below) if below else [stretch])]
        value = sum(ends) / len(ends)
        found |= {edge: (2 * value - root - start) / len(ends) ** 0.5 for edge in stretch}
        walk(below, rewards, value, root, found)


@in_one_test("seed", range(8))
def test_any_tree_has_the_advantages_of_a_walk_through_it(seed: int) -> None:
    pick = random.Random(seed)
    children, _ = grown(pick)
    paths = paths_of(children)
    reward = torch.tensor([pick.random() for _ in paths.edge])
    rewards = {path[-1]: float(one) for path, one in zip(leaves_of(children), reward, strict=True)}
    found: dict[int, float] = {-1: 0.0}
    root = sum(rewards.values()) / len(rewards)
    walk(children, rewards, root, root, found)
    expected = torch.tensor([[found[edge] for edge in row] for row in paths.edge.tolist()])
    assert_close(TreeRl()(scores_of(reward), paths), expected, atol=1e-6, rtol=0)


def test_without_shared_tokens_it_is_twice_the_undivided_grpo() -> None:
    scores, edges = scores_of(torch.tensor([0.3, 0.9, 0.1])), torch.arange(6).view(3, 2)
    expected = 2 * Grpo(std="none", clip=None)(scores)
    assert_close(TreeRl()(scores, Paths(edges)), expected[:, None].expand(3, 2))
    assert_close(TreeRl()(scores), expected[:, None])


def test_invalid_leaves_have_no_part_in_any_value() -> None:
    valid = torch.tensor([True, False, True, True])
    found = TreeRl()(scores_of(REWARD, valid=valid), Paths(HAND))
    # the beginning of the first is now passed by one leaf: its stretch goes on to the end
    assert_close(found, torch.zeros(4, 4))
    with_better = scores_of(torch.tensor([1.0, 9.0, 0.0, 0.0]), valid=valid)
    found = TreeRl()(with_better, Paths(HAND))
    assert_close(found[0], torch.full((4,), 2 * (1 - 1 / 3)))
    assert (found[1] == 0).all()


def test_groups_do_not_see_each_other() -> None:
    reward, group = torch.cat([REWARD, 1 - REWARD]), torch.tensor([7] * 4 + [3] * 4)
    found = TreeRl()(scores_of(reward, group), Paths(HAND.repeat(2, 1)))
    assert_close(found[:4], TreeRl()(scores_of(REWARD), Paths(HAND)))
    assert_close(found[4:], -found[:4])


def test_weights_are_not_negative() -> None:
    with pytest.raises(ValueError, match="local_weight must be at least 0, got -1"):
        TreeRl(local_weight=-1)
