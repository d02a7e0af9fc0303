"""Advantages weighted by the spread of their group, by hand."""

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.dr_grpo import DrGrpo
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.maxrl import Maxrl
from mmrl.advantages.token_weighted import TokenWeighted
from mmrl.core.declarations import AdvantageDeclaration
from tests.advantages.scored import NAN, decided, scored

PATHS = decided(3, 2, spread=[[2.0, 4.0, 6.0], [2.0, 4.0]])


def test_weights_go_from_one_to_the_largest_over_the_tokens_of_the_group_by_hand() -> None:
    # advantages 1 and -1; weights 1, 1.5 and 2: the shorter answer has no token where the group is farthest apart
    got = TokenWeighted(inner=DrGrpo(), max_weight=2.0)(scored([3.0, 1.0]), PATHS)
    assert_close(got, torch.tensor([[1.0, 1.5, 2.0], [-1.0, -1.5, 0.0]]))


def test_each_group_has_its_own_range() -> None:
    paths = decided(2, 2, 2, 2, spread=[[0.0, 1.0], [0.0, 1.0], [50.0, 10.0], [50.0, 10.0]])
    got = TokenWeighted(inner=DrGrpo(), max_weight=3.0)(scored([2.0, 0.0, 4.0, 2.0], [0, 0, 7, 7]), paths)
    assert_close(got, torch.tensor([[1.0, 3.0], [-1.0, -3.0], [3.0, 1.0], [-3.0, -1.0]]))


def test_with_weights_of_one_it_is_grpo_bit_for_bit() -> None:
    scores = scored([3.0, 1.0])
    plain = torch.where(PATHS.edge >= 0, Grpo()(scores)[:, None], 0.0)
    assert torch.equal(TokenWeighted(max_weight=1.0)(scores, PATHS), plain)
    flat = decided(3, 2, spread=[[5.0, 5.0, 5.0], [5.0, 5.0]])
    assert torch.equal(TokenWeighted()(scores, flat), plain), "the same spread at all tokens"


def test_samples_that_take_no_part_do_not_move_the_range() -> None:
    paths = decided(2, 2, 0, 2, spread=[[1.0, 3.0], [1.0, 3.0], [], [0.0, 0.0]])
    got = TokenWeighted(inner=DrGrpo(), max_weight=2.0)(scored([3.0, 1.0, NAN, 5.0], controls=[3]), paths)
    assert_close(got, torch.tensor([[1.0, 2.0], [-1.0, -2.0], [0.0, 0.0], [0.0, 0.0]]))


def test_samples_without_decisions_have_none() -> None:
    scores = scored([3.0, 1.0])
    assert TokenWeighted()(scores, decided(0, 0)).shape == (2, 0)
    assert torch.equal(TokenWeighted()(scores), Grpo()(scores))


def test_it_needs_what_the_inner_one_needs_and_the_spread() -> None:
    made = TokenWeighted(inner=Maxrl())
    assert made.declaration == AdvantageDeclaration(
        requires=frozenset({"spread"}), is_per_decision=True, requires_single_answers=True
    )
    with pytest.raises(ValueError, match="max_weight"):
        TokenWeighted(max_weight=0.9)
