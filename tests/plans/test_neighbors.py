"""Neighbours as numbers: what noise they begin with, what a plan of them counts, and what is refused."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch.testing import assert_close

from mmrl.plans.flow import Choice, Neighbors, Plan, Step, Tail, Transition
from tests.parameters import in_one_test

LEVELS = [(1.0, 0.6), (0.6, 0.2), (0.2, 0.0)]
STEPS = tuple(Step(*levels, Transition(1.0, levels[1] - levels[0], 0.0)) for levels in LEVELS)


ONE_OF_TWO = Choice(1, 2, 1, cast(Any, None), cast(Any, None))


def move(number: int, std: float = 0.5, branch: int = 1) -> tuple[int, Step]:
    sigma, sigma_next = LEVELS[number]
    return number, Step(sigma, sigma_next, Transition(1.0, sigma_next - sigma, std), branch)


def near(anchors: tuple[int, ...] = (0, 2), *moves: tuple[int, Step], spread: float = 0.3) -> Neighbors:
    return Neighbors(spread, anchors, moves or (move(0), move(2)))


@in_one_test("spread", [0.0, 0.3, 0.8, 1.0])
def test_members_have_the_variance_of_noise_and_a_covariance_of_what_they_share(spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    base, own = torch.randn(200_000, generator=generator), torch.randn(3, 200_000, generator=generator)
    found = torch.cov(Neighbors(spread).mixed(base, own))
    assert_close(found, torch.eye(3) * spread**2 + (1 - spread**2), atol=0.01, rtol=0)


def test_a_spread_of_one_is_noise_of_their_own_and_of_none_the_base() -> None:
    base, own = torch.randn(4), torch.randn(3, 4)
    assert torch.equal(Neighbors(1.0).mixed(base, own), own)
    assert torch.equal(Neighbors(0.0).mixed(base, own), base.expand(3, 4))
    assert_close(Neighbors(0.6).mixed(base, own), 0.8 * base + 0.6 * own)


def test_a_plan_counts_a_call_for_each_anchor_at_each_step() -> None:
    plan = Plan(5, STEPS, neighbors=near())
    assert (plan.num_samples, plan.num_rollout_calls, plan.num_update_calls, plan.max_next_states) == (5, 15, 4, 5)
    assert not plan.is_plain
    explores = Plan(5, STEPS, neighbors=Neighbors(0.3))
    assert (explores.num_rollout_calls, explores.num_update_calls, explores.max_next_states) == (15, 0, 0)
    assert explores.is_plain
    assert near().move(2) == move(2)[1] and near().move(1) is None


def test_the_draws_of_other_plans() -> None:
    random = Step(1.0, 0.5, Transition(1.0, -0.5, 0.1), 3)
    assert Plan(2, (random,)).max_next_states == 3
    assert Plan(2, STEPS).max_next_states == 0


@in_one_test(
    ("make", "message"),
    [
        (lambda: Neighbors(1.1), r"spread must be within \[0, 1\], got 1.1"),
        (lambda: Neighbors(0.3, (0,)), r"anchors and ascending calls go together, got \[0\] and calls \[\]"),
        (lambda: Neighbors(0.3, (), (move(0),)), r"go together, got \[\] and calls \[0\]"),
        (lambda: near((0,), move(2), move(0)), r"ascending calls go together, got \[0\] and calls \[2, 0\]"),
        (lambda: near((2, 0)), r"anchors are members of a group, ascending, got \[2, 0\]"),
        (lambda: near((-1, 0)), r"members of a group, ascending, got \[-1, 0\]"),
        (lambda: near((0,), move(0, std=0.0)), "a std above 0 and one child"),
        (lambda: near((0,), move(0, branch=2)), "a std above 0 and one child"),
        (lambda: Plan(2, STEPS, neighbors=near()), r"anchors are members of a group of 2, got \[0, 2\]"),
        (lambda: Plan(3, STEPS[:2], neighbors=near()), "the step from an anchor at call 2 must have the plan's noise"),
        (
            lambda: Plan(3, (*STEPS[:2], Step(0.2, 0.1, STEPS[2].transition)), neighbors=near()),
            "at call 2 must have the plan's noise levels",
        ),
        (lambda: Plan(3, (move(0)[1], *STEPS[1:]), neighbors=near()), "none branching or trained"),
        (lambda: Plan(4, STEPS, choices=(ONE_OF_TWO,), neighbors=near()), "members beside anchors go a step"),
        (
            lambda: Plan(3, (), tail=Tail("heun", (1.0, 0.6, 0.2, 0.0)), neighbors=near((0,), move(0))),
            "none branching or trained; not heun",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
