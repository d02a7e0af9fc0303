"""A virtual best member against statistics by hand."""

import statistics
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from mmrl.advantages.best_worst import BestWorst
from mmrl.advantages.granular import Granular
from mmrl.advantages.grpo import Grpo
from mmrl.advantages.ngrpo import Ngrpo
from mmrl.advantages.opo import Opo
from mmrl.advantages.process import Process
from mmrl.advantages.reinforce_pp import ReinforcePP
from mmrl.advantages.remax import Remax
from mmrl.advantages.rloo import Rloo
from mmrl.advantages.score import Score
from mmrl.advantages.spo import Spo
from mmrl.advantages.timestep_weighted import TimestepWeighted
from mmrl.advantages.tree import Tree
from mmrl.advantages.tree_rl import TreeRl
from mmrl.advantages.tree_rpo import TreeRpo
from mmrl.core.contracts import ConfigError
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.plugins import build
from tests.advantages.scored import NAN, decided, scored

AS_PAPER = Grpo(is_unbiased=True, epsilon=1e-6, clip=None)


def test_mean_and_std_have_one_more_member_by_hand() -> None:
    rewards = [0.0, 1.0, 0.0, 0.25]
    everyone = [*rewards, 1.0]
    mean, std = statistics.fmean(everyone), statistics.stdev(everyone) + 1e-6
    assert_close(Ngrpo(inner=AS_PAPER)(scored(rewards)), torch.tensor([(one - mean) / std for one in rewards]))


def test_a_group_of_failures_is_pushed_down_and_one_of_successes_left_alone() -> None:
    got = Ngrpo()(scored([0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]))
    # mean 1/5, population std 2/5: -1/2
    assert_close(got[:4], torch.full((4,), -0.5), atol=2e-4, rtol=0)
    assert (got[4:] == 0).all()


def test_without_a_virtual_member_it_is_the_inner_one() -> None:
    scores = scored([0.1, 0.9, NAN, 0.4, 3.0, 3.0], [0, 0, 0, 0, 5, 5])
    for inner in (Grpo(), Rloo(), Opo()):
        assert torch.equal(Ngrpo(inner=inner, virtual=0)(scores), inner(scores))


@pytest.mark.parametrize("virtual", [1, 2])
def test_it_is_the_inner_one_of_groups_that_have_these_members(virtual: int) -> None:
    rewards, group = [0.1, 0.9, 0.4, 0.2], [7, 7, 3, 3]
    written = scored([*rewards, *[2.0] * 2 * virtual], [*group, *[7, 3] * virtual])
    for inner in (Grpo(), Grpo(std="batch"), Rloo()):
        assert_close(Ngrpo(inner=inner, best=2.0, virtual=virtual)(scored(rewards, group)), inner(written)[:4])


@pytest.mark.parametrize("inner", [Grpo(std="batch"), Grpo(std="centred_batch"), ReinforcePP()])
def test_a_group_of_which_nothing_is_known_has_no_virtual_member(inner: Any) -> None:
    got = Ngrpo(inner=inner)(scored([0.1, 0.9, NAN, NAN, 0.5], [7, 7, 3, 3, 4], controls=[4]))
    assert_close(got[:2], Ngrpo(inner=inner)(scored([0.1, 0.9], [7, 7])))
    assert (got[2:] == 0).all() and not Ngrpo(inner=inner)(scored([NAN, NAN])).any()


def test_a_virtual_member_decides_nothing() -> None:
    scores, paths = scored([0.1, 0.9, 0.4]), decided(3, 1, 2)
    weighted: Any = TimestepWeighted(by="discount", scale=1.0)
    each = Ngrpo()(scores)[:, None].expand(3, 3)
    assert_close(Ngrpo(inner=weighted)(scores, paths), torch.where(paths.edge >= 0, each, 0.0))


def test_inner_advantages_that_would_not_see_a_virtual_member_are_refused() -> None:
    by_decisions = ReinforcePP(counts="decisions")
    refused: tuple[Any, ...] = (Opo(), Tree(), TreeRl(), TreeRpo(), Spo(), by_decisions, Granular(inner=Tree()))
    for inner in refused:
        with pytest.raises(ValueError, match="inner weighs samples by their decisions, of which a virtual member has"):
            Ngrpo(inner=inner)
    seen: Any = Granular()
    Ngrpo(inner=seen)


def test_a_group_of_failures_is_kept_as_a_whole() -> None:
    advantage, scores = Ngrpo(inner=BestWorst()), scored([0, 0, 0, 1, 0, 1], [0, 0, 0, 4, 4, 4])
    assert advantage(scores).tolist() == [-1, -1, -1, 1, -1, 1]
    assert advantage.update_mask(scores).all()
    assert BestWorst().update_mask(scores).tolist() == [False, False, False, True, True, True]


def test_invalid_samples_and_controls_change_nothing() -> None:
    scores = scored([NAN, 0.5, 0.25, 9.0, NAN], [0, 0, 0, 0, 4], controls=(3,))
    got = Ngrpo()(scores)
    rows = torch.tensor([1, 2])
    assert (got[[0, 3, 4]] == 0).all()
    assert_close(got[rows], Ngrpo()(scores.select(rows)))


def test_several_rewards_are_summed_first() -> None:
    values = torch.tensor([[0.5, 1.0], [0.0, 0.5]])
    two = scored([0.0] * 2, values=values, names=("a", "b"), weights=(1.0, 0.5))
    assert_close(Ngrpo()(two), Ngrpo()(scored([1.0, 0.25])))


def test_it_says_what_it_compares_with_and_how_few_it_can_compare() -> None:
    assert Ngrpo().declaration == AdvantageDeclaration(compares_with="best", min_group_size=1)
    assert Ngrpo(virtual=0).declaration == AdvantageDeclaration()


def test_the_inner_one_is_built_of_a_section() -> None:
    made = build("advantages", {"name": "ngrpo", "best": 2, "inner": {"name": "grpo", "epsilon": 1e-6}})
    assert made == Ngrpo(inner=Grpo(epsilon=1e-6), best=2.0)
    with pytest.raises(ConfigError, match=r"advantages\.ngrpo\.inner.*unknown advantage 'gropo'"):
        build("advantages", {"name": "ngrpo", "inner": {"name": "gropo"}})


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="virtual must be at least 0"):
        Ngrpo(virtual=-1)
    for inner in (Process(), Remax(), Score()):
        with pytest.raises(ValueError, match="inner must compare the totals of a group"):
            Ngrpo(inner=inner)
