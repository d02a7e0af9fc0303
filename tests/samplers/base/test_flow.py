"""Properties of every flow sampler, found by walking the folder, and what they share."""

from itertools import pairwise
from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build, find, names
from mmrl.plans.flow import Plan
from mmrl.samplers.base.fans import FanSampler
from mmrl.samplers.base.flow import FlowSampler, StochasticSampler, WindowedSampler
from tests.parameters import in_one_test

SAMPLERS: dict[str, Any] = {name: find("samplers", name) for name in names("samplers")}
# what given_and_drawn draws is `ode`'s; samplers that steer others have no grid of their own (test_steered.py)
NAMES = [name for name, cls in SAMPLERS.items() if issubclass(cls, FlowSampler) and name != "given_and_drawn"]
WINDOWED = [name for name in NAMES if issubclass(SAMPLERS[name], WindowedSampler)]
STOCHASTIC = [name for name in NAMES if issubclass(SAMPLERS[name], StochasticSampler)]
FANS = [name for name in NAMES if issubclass(SAMPLERS[name], FanSampler)]
WITH_WINDOW = [name for name in NAMES if "window" in SAMPLERS[name].__dataclass_fields__]
# settings whose defaults are made for the grids and groups of their papers
SMALL: dict[str, dict[str, Any]] = {
    "branch_grpo": {"splits": []},
    "partial_chain": {"strength": 1.0},
    "tempflow": {"roots": 1},
    "g2rpo": {"window": {}},
    "e_grpo": {"merged": [1, 1]},
}
KEY = GroupKey(seed=3, iteration=5, prompt_index=7)
WINDOWS: list[dict[str, Any]] = [
    {},
    {"mode": "range", "first": 2, "last": 5},
    {"mode": "random", "last": 6, "size": 2},
    {"mode": "subset", "size": 3},
    {"mode": "sliding", "size": 4, "every": 2},
]


def make(name: str, num_steps: int = 10, **settings: Any) -> Any:
    return build("samplers", {"name": name, "num_steps": num_steps, **SMALL.get(name, {}), **settings})


def groups(plan: Plan) -> set[int]:
    return {path.group for path in plan.paths}


def random_steps(plan: Plan) -> list[int]:
    return [index for index, step in enumerate(plan.steps) if step.is_random]


@in_one_test("group_size", [1, 2, 7])
@pytest.mark.parametrize("name", NAMES)
def test_a_plan_draws_the_group_along_the_grid_and_ends_without_noise(
    name: str, group_size: int, grid_policy: Any
) -> None:
    policy = grid_policy()
    plan = make(name).plan(policy, KEY, group_size)
    assert plan.num_samples == group_size * len(groups(plan))
    assert {group: sum(path.num_ends for path in plan.paths if path.group == group) for group in groups(plan)} == {
        group: group_size for group in groups(plan)
    }
    grid = policy.sigmas("pipeline", 10)
    assert [(step.sigma, step.sigma_next) for step in plan.steps] == list(pairwise(grid))
    assert plan.steps[-1].sigma_next == 0
    assert not plan.steps[-1].is_random


@in_one_test("name", NAMES)
def test_the_same_key_gives_the_same_plan(name: str, grid_policy: Any) -> None:
    plans = [make(name).plan(grid_policy(), GroupKey(3, 5, 7), 4) for _ in range(2)]
    assert plans[0] == plans[1]


@in_one_test("window", WINDOWS)
@in_one_test("share_noise", [False, True])
@pytest.mark.parametrize("name", STOCHASTIC)
def test_steps_outside_the_window_are_euler_steps(
    name: str, share_noise: bool, window: dict[str, Any], grid_policy: Any
) -> None:
    sampler = make(name, window=window, share_noise=share_noise)
    for draw in range(20):
        key = GroupKey(0, draw, draw)
        plan = sampler.plan(grid_policy(), key, 3)
        assert plan.num_samples == 3
        assert random_steps(plan) == list(sampler.window.steps(10, key)) != []
        for step in plan.steps:
            if not step.is_random:
                assert (step.transition.state, step.transition.velocity) == (1.0, step.sigma_next - step.sigma)


@in_one_test("name", STOCHASTIC)
def test_shared_noise_computes_the_prefix_once(name: str, grid_policy: Any) -> None:
    """k + 1 + G (T - k - 1) calls to draw a group, one call to update it."""
    for k in range(9):
        window = {"mode": "range", "first": k, "last": k + 1}
        plan = make(name, share_noise=True, window=window).plan(grid_policy(), KEY, 24)
        assert (plan.roots, plan.num_rollout_calls, plan.num_update_calls) == (1, k + 1 + 24 * (10 - k - 1), 1)


@in_one_test("name", STOCHASTIC)
def test_own_noise_computes_every_sample_from_its_own_latent(name: str, grid_policy: Any) -> None:
    window = {"mode": "range", "first": 2, "last": 4}
    plan = make(name, share_noise=False, train_fraction=1.0, window=window).plan(grid_policy(), KEY, 24)
    assert (plan.roots, plan.num_rollout_calls, plan.num_update_calls) == (24, 240, 48)
    assert {step.branch for step in plan.steps} == {1}


@in_one_test(("fraction", "count"), [(1.0, 9), (0.6, 5), (0.99, 8), (0.01, 1)])
@pytest.mark.parametrize("name", WINDOWED)
def test_a_fraction_of_the_random_steps_is_trained(name: str, fraction: float, count: int, grid_policy: Any) -> None:
    sampler = make(name, train_fraction=fraction)
    plans = [sampler.plan(grid_policy(), GroupKey(0, 0, draw), 2) for draw in range(40)]
    assert all(random_steps(plan) == list(range(9)) for plan in plans)
    trained = [[n for n, step in enumerate(plan.steps) if step.is_decision] for plan in plans]
    assert {len(steps) for steps in trained} == {count}
    assert {step for steps in trained for step in steps} == set(range(9))  # in the long run, all are


def test_a_fraction_does_not_lose_a_step_to_rounding(grid_policy: Any) -> None:
    plan = make("cps", 101, train_fraction=0.29).plan(grid_policy(), KEY, 1)
    assert sum(step.is_decision for step in plan.steps) == 29


@in_one_test("name", NAMES)
def test_the_grid_is_the_pipelines_the_uniform_one_or_the_users(name: str, grid_policy: Any) -> None:
    policy = grid_policy()

    def levels(sigmas: Any) -> list[float]:
        return [step.sigma for step in make(name, 3, sigmas=sigmas).plan(policy, KEY, 1).steps]

    assert levels("pipeline") == policy.sigmas("pipeline", 3)[:3]
    assert levels("uniform") == policy.sigmas("uniform", 3)[:3] != levels("pipeline")
    assert levels([0.9, "5e-1", 0.25, 0]) == [0.9, 0.5, 0.25]


@in_one_test(
    ("settings", "message"),
    [
        ({"sigmas": [1, 0.5, 0]}, "3 steps need 4 sigmas, got 3"),
        ({"sigmas": [1, 0.5, 0.5, 0]}, "must fall strictly from at most 1 to 0"),
        ({"sigmas": [1.1, 0.5, 0.2, 0]}, "must fall strictly from at most 1 to 0"),
        ({"sigmas": [1, 0.5, 0.2, 0.1]}, "must fall strictly from at most 1 to 0"),
        ({"sigmas": "karras"}, "sigmas"),
        ({"num_steps": 0}, "num_steps must be at least 1 and at most 10,000, got 0"),
        ({"num_steps": 10**9}, "num_steps must be at least 1 and at most 10,000, got 1000000000"),
        ({"noise": 1}, "has no field 'noise'"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_every_sampler_refuses_a_wrong_grid(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **{"num_steps": 3, **settings})


@in_one_test(
    ("settings", "message"),
    [
        ({"num_steps": 1}, "num_steps must be at least 2, got 1: the last step is never random"),
        ({"window": {"mode": "range", "last": 4}}, "last step is never random"),
        ({"window": {"mode": "random"}}, "needs a size"),
        ({"window": {"mode": "random", "size": 1, "start": 2}}, "window has no field 'start'"),
    ],
)
@pytest.mark.parametrize("name", WITH_WINDOW)
def test_every_sampler_with_a_window_refuses_impossible_ones(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **{"num_steps": 3, **settings})


@pytest.mark.parametrize("fraction", [0, 1.1])
@pytest.mark.parametrize("name", WINDOWED)
def test_the_share_of_trained_steps_is_above_0_and_at_most_1(name: str, fraction: float) -> None:
    message = f"train_fraction must be above 0 and at most 1, got {fraction}"
    with pytest.raises(ConfigError, match=message):
        make(name, 3, train_fraction=fraction)


class EndsAbove:
    """A grid of 3 steps that ends where the policy decodes, above 0."""

    def sigmas(self, kind: str, num_steps: int) -> list[float]:
        return [0.9 - 0.25 * n for n in range(num_steps + 1)]


@in_one_test("name", STOCHASTIC)
def test_the_last_step_is_random_only_where_a_window_says_so_and_the_grid_ends_above_zero(
    name: str, grid_policy: Any
) -> None:
    window = {"mode": "range", "first": 1, "last": 3}
    with pytest.raises(ConfigError, match="the last step is never random on a grid that ends at sigma 0"):
        make(name, 3, window=window).plan(grid_policy(), KEY, 2)
    assert random_steps(make(name, 3, window=window).plan(EndsAbove(), KEY, 2)) == [1, 2]
    assert random_steps(make(name, 3).plan(EndsAbove(), KEY, 2)) == [0, 1]


def test_a_policy_whose_grid_rises_or_falls_below_zero_is_refused() -> None:
    for levels in ([0.9, 0.5, 0.6, 0.1], [0.9, 0.5, 0.1, -0.1], [0.9, 0.5, 0.1]):
        policy = type("Policy", (), {"sigmas": lambda self, kind, num_steps, levels=levels: levels})()
        with pytest.raises(ValueError, match=r"must fall strictly from at most 1 to 0|3 steps need 4 sigmas"):
            make("ode", 3).plan(policy, KEY, 1)
