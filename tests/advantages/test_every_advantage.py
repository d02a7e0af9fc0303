"""Properties of every advantage in the folder, with its default settings."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmrl.advantages.value_at_risk import ValueAtRisk
from mmrl.core.contracts import RangeChecking
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.plugins import build, names
from tests.parameters import in_one_test

# Groups of 6 mixed, 3 equal, 3 with one invalid, 1 alone, and 2 of whom one is invalid; two have a control
GROUP = torch.tensor([7, 7, 1, 7, 1, 30, 7, 1, 30, 4, 30, 5, 5, 7, 7, 7, 1])
REWARD = torch.tensor(
    [0.1, 0.9, 0.3, 0.5, 0.3, 2.0, 0.2, 0.3, math.nan, 8.0, 1.0, math.nan, 3.0, 0.7, 0.0, 0.4, 0.3], dtype=torch.float32
)
IS_CONTROL = torch.arange(len(GROUP)) >= 15
VALID = REWARD.isfinite() & ~IS_CONTROL
LENGTH = torch.tensor([3, 1, 4, 1, 5, 2, 5, 3, 5, 2, 2, 3, 3, 2, 4, 5, 1])
DEGENERATE = torch.isin(GROUP, torch.tensor([1, 4, 5]))


@pytest.fixture(params=names("advantages"))
def advantage(request: pytest.FixtureRequest) -> Any:
    return build("advantages", {"name": request.param})


# Whether the decisions of the samples are known, and all that may be known of them.
samples_and_decisions = in_one_test("with_paths", [False, True])


def _scores(rows: Tensor | None = None, reward: Tensor = REWARD) -> Scores:
    numbers = torch.arange(len(GROUP))
    # and rewards that some read, but do not learn from
    values = torch.stack([reward, (1 + numbers % 3) / 3, torch.full_like(reward, 0.4)], 1)
    names, weights = ("r", "majority_vote", "response_diversity"), (1.0, 0.0, 0.0)
    scores = Scores(values, names, weights, VALID, GROUP, numbers, torch.zeros_like(numbers), is_control=IS_CONTROL)
    return scores if rows is None else scores.select(rows)


def _paths(with_paths: bool, rows: Tensor | None = None) -> Paths | None:
    """Returns paths whose decisions no two samples share."""
    if not with_paths:
        return None
    is_there = torch.arange(5) < LENGTH[:, None]
    place = torch.arange(5).expand_as(is_there)
    facts = {
        "step": place.float(),
        "sigma": 1 - place / 5,
        "sigma_next": 0.8 - place / 5,
        "std": 0.1 + place / 10,
        "log_prob": -place / 7 - 0.1,
        "entropy": 0.05 + (place * torch.arange(1, len(GROUP) + 1)[:, None] % 4) / 4,
        "spread": 1 + (place * 3 % 5),
    }
    paths = Paths(
        torch.where(is_there, is_there.flatten().cumsum(0).view_as(is_there) - 1, -1),
        {name: torch.where(is_there, values.expand_as(is_there), 0.0).float() for name, values in facts.items()},
    )
    return paths if rows is None else paths[rows]


def _compares_with(advantage: Any) -> str:
    """`group`, or what makes that equal rewards need not teach nothing."""
    return AdvantageDeclaration.of(advantage).compares_with


def test_there_are_advantages() -> None:
    assert {"grpo", "rloo"} <= set(names("advantages"))


@samples_and_decisions
def test_shape_and_dtype(advantage: Any, with_paths: bool) -> None:
    got = advantage(_scores(), _paths(with_paths))
    assert got.shape in ((len(GROUP),), (len(GROUP), 5 if with_paths else 1))
    assert got.dtype == torch.float32
    assert got.isfinite().all()


def test_it_says_whether_it_tells_decisions_apart(advantage: Any) -> None:
    """A loss on whole samples has no place for [B, K]."""
    shape = advantage(_scores(), _paths(with_paths=True)).shape
    assert shape == ((len(GROUP), 5) if AdvantageDeclaration.of(advantage).is_per_decision else (len(GROUP),))


@samples_and_decisions
def test_the_order_of_the_batch_does_not_matter(advantage: Any, with_paths: bool) -> None:
    order = torch.randperm(len(GROUP), generator=torch.Generator().manual_seed(0))
    assert_close(advantage(_scores(order), _paths(with_paths, order)), advantage(_scores(), _paths(with_paths))[order])


@in_one_test("num_processes", [2, 4])
@samples_and_decisions
def test_it_is_the_same_after_a_gather_from_several_processes(
    advantage: Any, with_paths: bool, num_processes: int
) -> None:
    """Whole groups on each process, gathered process by process."""
    index = torch.unique(GROUP, return_inverse=True)[1]
    parts = [torch.nonzero(index % num_processes == rank)[:, 0] for rank in range(num_processes)]
    known = [path for rows in parts if (path := _paths(with_paths, rows)) is not None]
    gathered = advantage(Scores.join([_scores(rows) for rows in parts]), Paths.join(known) if known else None)
    assert_close(gathered, advantage(_scores(), _paths(with_paths))[torch.cat(parts)])


@samples_and_decisions
def test_invalid_samples_and_controls_get_zero(advantage: Any, with_paths: bool) -> None:
    assert (advantage(_scores(), _paths(with_paths))[~VALID] == 0).all()


@samples_and_decisions
def test_degenerate_groups_get_exactly_zero(advantage: Any, with_paths: bool) -> None:
    """All rewards equal, alone, or the only valid member; not where more is compared with than the group."""
    got = advantage(_scores(), _paths(with_paths))
    if _compares_with(advantage) == "group":
        assert (got[DEGENERATE] == 0).all()
    assert got.abs().sum() > 0


@samples_and_decisions
def test_a_batch_in_which_all_is_equal_gets_exactly_zero(advantage: Any, with_paths: bool) -> None:
    if _compares_with(advantage) == "nothing":
        pytest.skip("it is the score, whatever others have")
    for reward in (1.0,) if _compares_with(advantage) == "best" else (1.0, 0.1, 1e6):
        assert (advantage(_scores(reward=torch.full_like(REWARD, reward)), _paths(with_paths)) == 0).all()


@samples_and_decisions
def test_controls_change_nothing_for_the_others(advantage: Any, with_paths: bool) -> None:
    if _compares_with(advantage) == "greedy":
        pytest.skip("it is a control that its samples are compared with")
    rows = (~IS_CONTROL).nonzero()[:, 0]
    assert_close(advantage(_scores(rows), _paths(with_paths, rows)), advantage(_scores(), _paths(with_paths))[rows])


@samples_and_decisions
def test_what_could_not_be_judged_changes_nothing_for_the_others(advantage: Any, with_paths: bool) -> None:
    wild = torch.where(VALID | IS_CONTROL, REWARD, 1e9)
    got, rows = advantage(_scores(reward=wild), _paths(with_paths)), (VALID | IS_CONTROL).nonzero()[:, 0]
    assert_close(got, advantage(_scores(), _paths(with_paths)))
    assert_close(got[rows], advantage(_scores(rows), _paths(with_paths, rows)))


@in_one_test("scale", [1e6, 1e-6])
@in_one_test("shift", [0.0, -1e6])
@samples_and_decisions
def test_huge_small_and_negative_rewards_stay_finite(
    advantage: Any, with_paths: bool, scale: float, shift: float
) -> None:
    if isinstance(advantage, RangeChecking):
        try:
            advantage.check({"r": (shift, 1e7)}, {"r": 1.0})
        except ValueError:
            return  # it refuses rewards below 0
    got = advantage(_scores(reward=REWARD * scale + shift), _paths(with_paths))
    assert got.isfinite().all()
    assert (got[~VALID] == 0).all()


def test_an_outlier_does_not_turn_the_order_of_the_others(advantage: Any) -> None:
    if isinstance(advantage, ValueAtRisk):
        advantage = replace(advantage, bundle=1)  # with answers of other groups on its sheet it may well
    outlying = REWARD.clone()
    outlying[0] = 1e6
    got = advantage(_scores(reward=outlying))
    got = got if got.dim() == 1 else got.sum(1)
    members = torch.tensor([14, 6, 3, 13, 1, 0])  # of the mixed group, from the worst to the best
    assert got.isfinite().all() and (got[members].diff() >= 0).all()


@samples_and_decisions
def test_an_empty_batch_is_empty(advantage: Any, with_paths: bool) -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    assert len(advantage(_scores(nothing), _paths(with_paths, nothing))) == 0


@samples_and_decisions
def test_a_batch_without_a_valid_sample_gets_zero(advantage: Any, with_paths: bool) -> None:
    rows = torch.tensor([8, 11])
    assert (advantage(_scores(rows), _paths(with_paths, rows)) == 0).all()


def test_it_says_the_smallest_group_that_it_can_compare(advantage: Any) -> None:
    assert AdvantageDeclaration.of(advantage).min_group_size >= (2 if _compares_with(advantage) == "group" else 1)
