"""Plans of neighbours: what they are by the paper's numbers, and what they are without."""

from dataclasses import replace
from typing import Any

import pytest

from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.plans.flow import Plan
from tests.parameters import in_one_test

KEY = GroupKey(3, 5, 7)


def plan_of(policy: Any, group_size: int = 12, key: GroupKey = KEY, **settings: Any) -> Plan:
    settings = {"num_steps": 8, "sigmas": "uniform"} | settings
    plan: Plan = build("samplers", {"name": "neighbor", **settings}).plan(policy, key, group_size)
    return plan


@pytest.mark.parametrize("solver", ["euler", "dpmpp_2m", "unipc"])
def test_the_papers_numbers(solver: str, grid_policy: Any) -> None:
    """8 calls for each of 12 members in a rollout, 4 anchors at 4 steps in an update: 1.33 calls for each."""
    plan = plan_of(grid_policy(), solver=solver)
    assert (plan.roots, plan.num_rollout_calls, plan.num_update_calls) == (12, 96, 16)
    assert plan.num_update_calls / plan.num_samples == pytest.approx(1.33, abs=0.01)
    near = plan.neighbors
    assert near is not None and near.spread == 0.3 and len(near.anchors) == len(near.moves) == 4
    grid = grid_policy().sigmas("uniform", 8)
    for number, step in near.moves:
        assert (step.sigma, step.sigma_next) == (grid[number], grid[number + 1])
        assert (step.transition.state, step.transition.velocity) == (1.0, grid[number + 1] - grid[number])
        assert 2 * step.transition.std**2 == pytest.approx(1.0)  # the density is then exp(-distance) of what it is at 0


def test_the_temperature_divides_squared_distances(grid_policy: Any) -> None:
    near = plan_of(grid_policy(), temperature=0.25).neighbors
    assert near is not None
    assert [2 * step.transition.std**2 for _, step in near.moves] == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("settings", [{}, {"solver": "dpmpp_2m"}, {"solver": "heun", "anchors": 0}])
def test_without_neighbours_and_anchors_it_is_ode(settings: dict[str, Any], grid_policy: Any) -> None:
    plain = {name: value for name, value in settings.items() if name == "solver"}
    ode = build("samplers", {"name": "ode", "num_steps": 8, "sigmas": "uniform", **plain})
    assert replace(plan_of(grid_policy(), **settings), neighbors=None) == ode.plan(grid_policy(), KEY, 12)


@pytest.mark.slow
def test_anchors_and_steps_are_drawn_from_the_key_alone(grid_policy: Any) -> None:
    keys = [GroupKey(3, 5, draw) for draw in range(200)]
    plans = [plan_of(grid_policy(), key=key) for key in keys]
    assert plans == [plan_of(grid_policy(), key=key) for key in keys]
    found = [plan.neighbors for plan in plans]
    anchors = [near.anchors.count(member) for near in found if near is not None for member in range(12)]
    steps = [number for near in found if near is not None for number, _ in near.moves]
    for member in range(12):  # each a third of the groups, and each step half of them
        assert sum(anchors[member::12]) == pytest.approx(200 / 3, abs=25)
    for number in range(8):
        assert steps.count(number) == pytest.approx(100, abs=30)


def test_the_last_step_may_be_one_of_them(grid_policy: Any) -> None:
    near = plan_of(grid_policy(), train_fraction=1.0).neighbors
    assert near is not None and [number for number, _ in near.moves] == list(range(8))


def test_steps_may_be_the_early_ones_alone(grid_policy: Any) -> None:
    near = plan_of(grid_policy(), early_fraction=0.5, train_fraction=1.0).neighbors
    assert near is not None and [number for number, _ in near.moves] == [0, 1, 2, 3]
    drawn = [plan_of(grid_policy(), key=GroupKey(3, 5, draw), early_fraction=0.4).neighbors for draw in range(20)]
    assert {number for near in drawn if near is not None for number, _ in near.moves} == {0, 1, 2}
    assert all(near is not None and len(near.moves) == 1 for near in drawn)


def test_a_smaller_group_has_all_its_members_for_anchors(grid_policy: Any) -> None:
    near = plan_of(grid_policy(), group_size=3).neighbors
    assert near is not None and near.anchors == (0, 1, 2)


@in_one_test(
    ("settings", "message"),
    [
        ({"spread": 1.5}, "spread must be at least 0 and at most 1, got 1.5"),
        ({"anchors": -1}, "anchors must be at least 0, got -1"),
        ({"early_fraction": 1.1}, "early_fraction must be above 0 and at most 1, got 1.1"),
        ({"train_fraction": 0.0}, "train_fraction must be above 0 and at most 1, got 0.0"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"solver": "heun"}, "anchors go with solvers that make one call for a step, got solver heun"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("samplers", {"name": "neighbor", "num_steps": 8, **settings})
