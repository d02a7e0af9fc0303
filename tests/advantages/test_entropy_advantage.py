"""The bonus for uncertain tokens, by hand."""

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.dr_grpo import DrGrpo
from mmrl.advantages.entropy_advantage import EntropyAdvantage
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.maxrl import Maxrl
from mmrl.advantages.process import Process
from mmrl.core.data import Paths
from mmrl.core.declarations import AdvantageDeclaration
from tests.advantages.scored import NAN, decided, scored

PATHS = decided(3, 2, entropy=[[0.0, 1.0, 5.0], [0.5, 9.0]])


def test_the_bonus_is_cut_at_a_share_of_the_advantage_by_hand() -> None:
    # advantages 1 and -1; bonuses 0, 0.4, 2 and 0.2, 3.6, cut at 0.5
    got = EntropyAdvantage(inner=DrGrpo())(scored([3.0, 1.0]), PATHS)
    assert_close(got, torch.tensor([[1.0, 1.4, 1.5], [-0.8, -0.5, 0.0]]))


def test_with_alpha_zero_it_is_the_inner_one_at_every_decision() -> None:
    scores = scored([3.0, 1.0])
    got = EntropyAdvantage(inner=Grpo(), alpha=0.0)(scores, PATHS)
    assert torch.equal(got, torch.where(PATHS.edge >= 0, Grpo()(scores)[:, None], 0.0))


def test_no_sign_is_turned_and_the_bonus_is_never_below_zero() -> None:
    entropy = torch.rand(2, 6, generator=torch.Generator().manual_seed(0)) * 10
    paths = Paths(torch.arange(12).view(2, 6), {"entropy": entropy})
    scores = scored([3.0, 1.0])
    plain, got = Grpo()(scores)[:, None], EntropyAdvantage()(scores, paths)
    assert (got.sign() == plain.sign()).all() and (got >= plain).all()


def test_where_the_inner_advantage_is_zero_it_stays_zero() -> None:
    paths = decided(2, 2, 2, entropy=[[3.0, 4.0]] * 3)
    assert not EntropyAdvantage()(scored([0.1] * 3), paths).any()
    assert not EntropyAdvantage()(scored([0.1, NAN, 0.5]), paths)[1].any()


def test_an_inner_advantage_of_decisions_is_shaped_decision_by_decision() -> None:
    dense = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, NAN]])
    scores = scored([2.0, 0.0], granularities=("token",), dense={"r": dense})
    inner = Process()(scores, PATHS)
    expected = inner + torch.minimum(0.4 * PATHS.facts["entropy"], inner.abs() / 2)
    assert_close(EntropyAdvantage(inner=Process())(scores, PATHS), expected)
    declared = EntropyAdvantage(inner=Process()).declaration
    assert declared.sums_rewards and declared.requires_dense_reward


def test_samples_without_decisions_have_none() -> None:
    scores = scored([3.0, 1.0])
    assert EntropyAdvantage()(scores, decided(0, 0)).shape == (2, 0)
    assert torch.equal(EntropyAdvantage()(scores), Grpo()(scores))


def test_it_needs_what_the_inner_one_needs_and_the_entropy() -> None:
    made = EntropyAdvantage(inner=Maxrl())
    assert made.declaration == AdvantageDeclaration(requires=frozenset({"entropy"}), is_per_decision=True)
    assert made.update_mask(scored([1.0, 2.0])).tolist() == [True, True]
    with pytest.raises(ValueError, match="goes down to -1"):
        made.check({"r": (-1.0, 1.0)}, {"r": 1.0})


@pytest.mark.parametrize("wrong", [{"alpha": -0.1}, {"kappa": 1.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EntropyAdvantage(**wrong)  # type: ignore[arg-type]
