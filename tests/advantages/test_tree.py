"""Advantages of trees against a slow walk over nodes, and what pruning keeps."""

import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.advantages.grpo import Grpo
from mmrl.advantages.tree import Tree
from mmrl.core.data import Paths, Scores
from mmrl.core.plugins import build
from tests.parameters import in_one_test

# two groups of one draw each: splits at depth 1, 2 and 4 (8 leaves), and into three at depth 1 (3 leaves, 2 decisions)
EDGES = torch.tensor(
    [
        *([0, 2, 6, 10, 18], [0, 2, 6, 11, 19], [0, 3, 7, 12, 20], [0, 3, 7, 13, 21]),
        *([1, 4, 8, 14, 22], [1, 4, 8, 15, 23], [1, 5, 9, 16, 24], [1, 5, 9, 17, 25]),
        *([0, 3, -1, -1, -1], [1, 4, -1, -1, -1], [2, 5, -1, -1, -1]),
    ]
)
SAMPLED_TREE = torch.tensor([4] * 8 + [9] * 3)
REWARD = torch.tensor([0.3, 0.9, -1.0, 2.0, 0.1, 0.4, 1.1, 0.2, 5.0, 7.0, 6.0])
LOG_PROB = torch.where(EDGES >= 0, -0.3 - (EDGES * 7 % 5) / 4, 0.0)


def scores(reward: Tensor = REWARD, valid: Tensor | None = None, group: Tensor = SAMPLED_TREE) -> Scores:
    numbers = torch.arange(len(group))
    valid = torch.ones(len(group), dtype=torch.bool) if valid is None else valid
    return Scores(reward[:, None], ("r",), (1.0,), valid, group, numbers, torch.zeros_like(numbers))


def paths(edges: Tensor = EDGES, log_prob: Tensor = LOG_PROB) -> Paths:
    return Paths(edges, {"log_prob": log_prob})


def slow(reward: list[float], edges: list[list[int]], log_prob: list[list[float]] | None) -> list[list[float]]:
    """Returns A of the decisions of one group, node by node: a node is the list of decisions before it."""
    leaves = [tuple(edge for edge in row if edge >= 0) for row in edges]
    told = log_prob or [[0.0] * len(row) for row in edges]
    known = {row[: k + 1]: lp[k] for row, lp in zip(leaves, told, strict=True) for k in range(len(row))}

    def value(node: tuple[int, ...]) -> float:
        below = [n for n, leaf in enumerate(leaves) if leaf[: len(node)] == node]
        if node in leaves or log_prob is None:
            return statistics.fmean(reward[n] for n in below)
        children = {leaves[n][: len(node) + 1] for n in below}
        weights = {child: math.exp(known[child]) for child in children}
        return sum(weights[child] * value(child) for child in children) / sum(weights.values())

    advantages: list[list[float]] = [[0.0] * len(row) for row in edges]
    for k in range(len(edges[0])):
        nodes = {leaf[: k + 1] for leaf in leaves if len(leaf) > k}
        values = {node: value(node) for node in nodes}
        if len(nodes) < 2:
            continue
        mean, std = statistics.fmean(values.values()), statistics.stdev(values.values())
        for n, leaf in enumerate(leaves):
            if len(leaf) > k:
                advantages[n][k] = (values[leaf[: k + 1]] - mean) / (std + 1e-8)
    return advantages


@pytest.mark.parametrize("fusion", ["mean", "log_prob"])
def test_advantages_are_those_of_a_walk_over_all_nodes(fusion: Any) -> None:
    got = Tree(fusion=fusion)(scores(), paths())
    for draw in (4, 9):
        rows = draw == SAMPLED_TREE
        known = LOG_PROB[rows].tolist() if fusion == "log_prob" else None
        assert_close(got[rows], torch.tensor(slow(REWARD[rows].tolist(), EDGES[rows].tolist(), known)))


def test_two_leaves_by_hand() -> None:
    """Rewards 1 and 3 below one branch, 0 and 0 below the other: nodes 2 and 0, then 1, 3, 0, 0."""
    edges = torch.tensor([[0, 2], [0, 3], [1, 4], [1, 5]])
    got = Tree()(
        scores(torch.tensor([1.0, 3.0, 0.0, 0.0]), group=torch.zeros(4, dtype=torch.int64)), paths(edges, edges)
    )
    root_half, std = math.sqrt(0.5), math.sqrt(2.0)
    expected = [[root_half, 0.0], [root_half, 2 / std], [-root_half, -1 / std], [-root_half, -1 / std]]
    assert_close(got, torch.tensor(expected))


def test_a_node_is_the_mean_of_its_children_where_these_are_equally_likely() -> None:
    assert_close(
        Tree(fusion="log_prob")(scores(), paths(log_prob=torch.zeros_like(LOG_PROB))), Tree()(scores(), paths())
    )


def test_every_depth_has_mean_0_and_std_1_over_its_nodes() -> None:
    got = Tree(clip=None)(scores(), paths())
    for draw in (4, 9):
        for k in range(5):
            nodes = {
                int(e): float(a)
                for e, a, d in zip(EDGES[:, k], got[:, k], SAMPLED_TREE, strict=True)
                if d == draw and e >= 0
            }
            if nodes:
                assert statistics.fmean(nodes.values()) == pytest.approx(0, abs=1e-6)
                assert statistics.stdev(nodes.values()) == pytest.approx(1, abs=1e-5)


def test_leaves_that_share_a_decision_agree_on_it() -> None:
    got = Tree()(scores(), paths())
    names = SAMPLED_TREE[:, None] * 100 + EDGES
    for name in names[EDGES >= 0].unique():
        assert len(got[(names == name) & (EDGES >= 0)].unique()) == 1


def test_without_shared_decisions_it_is_grpo() -> None:
    """Chains of the same length: every depth compares all samples."""
    edges = torch.arange(33).view(11, 3)
    grpo = Grpo(is_unbiased=True, epsilon=1e-8, clip=5.0)(scores())
    assert_close(Tree()(scores(), paths(edges, edges)), grpo[:, None].expand(11, 3))
    assert_close(Tree()(scores()), grpo[:, None])


def test_depths_of_one_node_or_of_equal_rewards_get_0() -> None:
    edges = torch.tensor([[0, 1], [0, 2], [0, 3]])
    group = torch.zeros(3, dtype=torch.int64)
    got = Tree()(scores(torch.tensor([1.0, 2.0, 3.0]), group=group), paths(edges, edges))
    assert_close(got, torch.tensor([[0.0, -1.0], [0.0, 0.0], [0.0, 1.0]]))
    assert (Tree(min_std=0)(scores(torch.full((3,), 0.1), group=group), paths(edges, edges)) == 0).all()


def test_a_spread_below_the_least_is_none() -> None:
    nearly = torch.tensor([1.0, 1.0 + 5e-7, 1.0], dtype=torch.float32)
    assert (Tree()(scores(nearly, group=torch.zeros(3, dtype=torch.int64))) == 0).all()


def test_an_invalid_leaf_enters_no_node() -> None:
    valid = torch.arange(11) != 3
    got = Tree()(scores(REWARD.masked_fill(~valid, math.nan), valid), paths())
    rows = (SAMPLED_TREE == 4) & valid
    assert (got[3] == 0).all()
    assert_close(got[rows], torch.tensor(slow(REWARD[rows].tolist(), EDGES[rows].tolist(), None)))


@in_one_test("settings", [{}, {"fusion": "log_prob"}, {"width": "siblings"}, {"width": "extremes"}])
def test_the_order_of_the_leaves_does_not_matter(settings: dict[str, Any]) -> None:
    order, tree = torch.randperm(11, generator=torch.Generator().manual_seed(3)), Tree(**settings)
    assert_close(tree(scores().select(order), paths()[order]), tree(scores(), paths())[order])
    assert torch.equal(
        tree.update_mask(scores().select(order), paths()[order]), tree.update_mask(scores(), paths())[order]
    )


def test_pruning_leaves_out_decisions_behind_the_last_split_only() -> None:
    """The first group parts last at its fourth decision, the second, three chains, at its first."""
    for width, best in (("siblings", [1, 3, 5, 6, 9]), ("extremes", [3, 6, 2, 4, 8, 9])):
        kept = Tree(width=width).update_mask(scores(), paths())  # type: ignore[arg-type]
        behind = torch.zeros(11, 5, dtype=torch.bool)
        behind[:8, 4], behind[8:, 1:] = True, True
        expected = ~behind
        for row in best:
            expected[row] = True
        assert torch.equal(kept, expected), width


def test_a_share_of_one_keeps_all_and_small_families_keep_one() -> None:
    assert Tree(width="siblings", keep=1.0).update_mask(scores(), paths()).all()
    assert Tree(width="extremes", keep=1.0).update_mask(scores(), paths()).all()
    assert Tree(width="siblings", keep=0.01).update_mask(scores(), paths())[:8, 4].sum() == 4
    assert Tree(width="extremes", keep=0.01).update_mask(scores(), paths())[:8, 4].sum() == 2


def test_without_pruning_all_is_kept() -> None:
    assert Tree().update_mask(scores(), paths()).all()
    assert Tree(width="siblings").update_mask(scores(), None).all()


@in_one_test(
    ("settings", "message"),
    [
        ({"keep": 0}, "keep must be above 0 and at most 1, got 0"),
        ({"min_std": -1}, "min_std must be at least 0, got -1"),
        ({"epsilon": -1}, "epsilon must be at least 0, got -1"),
        ({"clip": 0}, "clip must be above 0, or null, got 0"),
        ({"fusion": "max"}, "fusion"),
        ({"width": "best"}, "width"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("advantages", {"name": "tree", **settings})
