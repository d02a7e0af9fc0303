"""Every fork is a group: children against each other, by hand and by a walk through the tree."""

import random
from statistics import fmean, pstdev

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.tree_rpo import TreeRpo
from mmrl.core.data import Paths
from tests.advantages.token_trees import HAND, REWARD, Node, grown, leaves_of, paths_of, scores_of
from tests.parameters import in_one_test


def test_siblings_are_compared_as_worked_out_by_hand() -> None:
    found = TreeRpo(epsilon=0)(scores_of(REWARD), Paths(HAND))
    assert_close(found, torch.tensor([[-1.0, -1, 1, 1], [-1, -1, -1, 0], [1, 1, 0, 0], [1, 1, 0, 0]]))


def test_a_value_is_the_mean_of_children_not_of_leaves() -> None:
    edges = torch.tensor([[0, 1], [0, 2], [3, -1]])  # the third leaf ended before it would fork
    found = TreeRpo(std="none")(scores_of(torch.tensor([1.0, 0.0, 0.0])), Paths(edges))
    assert_close(found, torch.tensor([[0.25, 0.5], [0.25, -0.5], [-0.25, 0]]))  # 0.5 and 0 behind the root, not 1/3


def value_of(stretch: list[int], below: list[Node], rewards: dict[int, float]) -> float:
    return fmean(value_of(*child, rewards) for child in below) if below else rewards[stretch[-1]]


def walk(children: list[Node], rewards: dict[int, float], found: dict[int, float]) -> None:
    values = [value_of(*child, rewards) for child in children]
    for (stretch, below), value in zip(children, values, strict=True):
        found |= {edge: (value - fmean(values)) / (pstdev(values) + 0.01) for edge in stretch}
        walk(below, rewards, found)


@in_one_test("seed", range(8))
def test_any_tree_has_the_advantages_of_a_walk_through_it(seed: int) -> None:
    pick = random.Random(seed)
    children, _ = grown(pick)
    paths = paths_of(children)
    reward = torch.tensor([pick.random() for _ in paths.edge])
    rewards = {path[-1]: float(one) for path, one in zip(leaves_of(children), reward, strict=True)}
    found: dict[int, float] = {-1: 0.0}
    walk(children, rewards, found)
    expected = torch.tensor([[found[edge] for edge in row] for row in paths.edge.tolist()])
    assert_close(TreeRpo(epsilon=0.01)(scores_of(reward), paths), expected, atol=1e-5, rtol=0)


def test_without_shared_tokens_it_is_grpo() -> None:
    scores, edges = scores_of(torch.tensor([0.3, 0.9, 0.1])), torch.arange(6).view(3, 2)
    for std, of_grpo in (("siblings", "group"), ("none", "none")):
        expected = Grpo(std=of_grpo, clip=None)(scores)  # type: ignore[arg-type]
        assert_close(TreeRpo(std=std)(scores, Paths(edges)), expected[:, None].expand(3, 2))  # type: ignore[arg-type]


def test_an_only_child_and_equal_siblings_get_exactly_nothing() -> None:
    edges = torch.tensor([[0, 1, 2], [0, 1, 3], [0, 1, 4]])
    assert (TreeRpo()(scores_of(torch.full((3,), 0.1)), Paths(edges)) == 0).all()
    assert (TreeRpo()(scores_of(torch.tensor([0.1, 0.2, 0.7])), Paths(edges))[:, :2] == 0).all()


def test_epsilon_is_not_negative() -> None:
    with pytest.raises(ValueError, match="epsilon must be at least 0, got -1"):
        TreeRpo(epsilon=-1)
