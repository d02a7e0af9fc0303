"""Decisions as tables: joined, cut, and counted among those that take part."""

import pytest
import torch
from torch.testing import assert_close

from mmrl.core.data import DecisionBlock, Paths
from mmrl.core.keys import prompt_index_of, subgroup
from mmrl.core.views import DecisionView
from tests.toys import toy_rollout

# A root that splits into two, one of which splits again: edges 0 (two leaves), 1 and 2 below it, and 3, 4 of the third
EDGE = torch.tensor([[0, 1], [0, 2], [3, 4]])
BLOCK = DecisionBlock(torch.tensor([[0, 1], [0, 1], [0, 2]]), EDGE, torch.tensor([[0.5, 1], [0.5, 1], [1, 1]]))


def test_a_shared_decision_counts_once_among_the_leaves_that_take_part() -> None:
    everyone = torch.ones(3, 1)
    assert torch.equal(BLOCK.weight_among(everyone), BLOCK.weight)
    without_the_second = torch.tensor([[1.0], [0.0], [1.0]])
    assert BLOCK.weight_among(without_the_second).tolist() == [[1, 1], [0, 0], [1, 1]]
    without_the_first_edge = torch.tensor([[0.0, 1], [0, 1], [1, 0]])
    assert BLOCK.weight_among(without_the_first_edge).tolist() == [[0, 1], [0, 1], [1, 0]]
    assert not BLOCK.weight_among(torch.zeros(3, 1)).any()
    assert DecisionBlock.none(2).weight_among(torch.ones(2, 1)).shape == (2, 0)


def test_a_view_makes_no_call_for_what_takes_no_part() -> None:
    _, rollout = toy_rollout()
    view = DecisionView(torch.arange(rollout.num_samples))
    takes_part = torch.zeros(rollout.num_samples, 1)
    takes_part[[1, 3]] = 1.0
    assert view.among(rollout, takes_part).calls.tolist() == [1, 3]
    assert torch.equal(
        view.weight_among(rollout, takes_part), view.among(rollout, takes_part).weight(rollout) * takes_part
    )
    by_decision = torch.zeros(rollout.blocks[0].edge.shape)
    by_decision[2, 0] = 1.0
    assert view.among(rollout, by_decision).calls.tolist() == [2]


def test_paths_are_joined_as_wide_as_the_widest_and_taken_apart_again() -> None:
    one = Paths(torch.tensor([[0, 1]]), {"std": torch.tensor([[0.5, 0.25]]), "step": torch.tensor([[0.0, 1.0]])})
    other = Paths(torch.tensor([[0], [4]]), {"std": torch.tensor([[0.1], [0.2]])})
    nothing = Paths(torch.zeros(1, 0, dtype=torch.int64))
    joined = Paths.join([one, other, nothing])
    assert joined.edge.tolist() == [[0, 1], [0, -1], [4, -1], [-1, -1]]
    assert set(joined.facts) == {"std"}, "what only some know is not known of all"
    assert_close(joined.facts["std"], torch.tensor([[0.5, 0.25], [0.1, 0], [0.2, 0], [0, 0]]))
    assert torch.equal(joined[torch.tensor([0])].facts["std"], one.facts["std"])
    assert joined[[2, 1]].edge.tolist() == [[4, -1], [0, -1]]


def test_blocks_take_their_facts_along() -> None:
    with_facts = DecisionBlock(BLOCK.call, EDGE, BLOCK.weight, {"std": EDGE.float()})
    joined = DecisionBlock.join([with_facts, with_facts])
    assert joined.edge.tolist() == [[0, 1], [0, 2], [3, 4], [5, 6], [5, 7], [8, 9]]
    assert joined.call[3:].tolist() == [[3, 4], [3, 4], [3, 5]]
    assert torch.equal(joined.paths.facts["std"], torch.cat([EDGE, EDGE]).float())


@pytest.mark.parametrize("draw", [0, 7, 10**9])
def test_the_groups_of_a_draw_are_told_apart_and_know_their_draw(draw: int) -> None:
    groups = torch.tensor([subgroup(draw, number) for number in range(4)])
    assert groups[0] == draw and len(groups.unique()) == 4
    assert prompt_index_of(groups).tolist() == [draw] * 4
