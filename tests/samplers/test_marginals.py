"""Marginals under the optimal velocity (docs/maths/sde-sampling.md#how-well-samplers-keep-the-marginals)."""

import math
from typing import Any

import pytest

from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.plans.flow import Plan
from tests.parameters import in_one_test

KEY = GroupKey(seed=0, iteration=0, prompt_index=0)


def sample_plan(policy: Any, name: str, num_steps: int, **settings: float) -> Plan:
    sampler = build("samplers", {"name": name, "num_steps": num_steps, "sigmas": "uniform", **settings})
    plan: Plan = sampler.plan(policy, KEY, 1)
    return plan


def point_mass_ratios(plan: Plan) -> list[float]:
    """Std of the latents after each step but the last, over the exact sigma, when all data are one point.

    There v = (x - point) / sigma. The mean must stay at (1 - sigma) point.
    """
    point, mean, variance, ratios = 2.0, 0.0, 1.0, []
    for step in plan.steps[:-1]:
        move = step.transition
        slope = move.state + move.velocity / step.sigma
        mean = slope * mean - move.velocity / step.sigma * point
        variance = slope**2 * variance + move.std**2
        assert mean == pytest.approx((1 - step.sigma_next) * point, abs=1e-12)
        ratios.append(math.sqrt(variance) / step.sigma_next)
    return ratios


def gaussian_error(plan: Plan) -> float:
    """Relative error of the std at sigma = 1/2 when the data are N(0, 1)."""
    variance = 1.0
    for step in plan.steps[: len(plan.steps) // 2]:
        exact = step.sigma**2 + (1 - step.sigma) ** 2
        slope = step.transition.state + step.transition.velocity * (2 * step.sigma - 1) / exact
        variance = slope**2 * variance + step.transition.std**2
    return math.sqrt(variance / 0.5) - 1


@in_one_test("name", ["ode", "cps", "ddim", "precise"])
def test_bridges_keep_the_marginal_of_point_mass_data_exactly(name: str, grid_policy: Any) -> None:
    assert point_mass_ratios(sample_plan(grid_policy(), name, 10)) == pytest.approx([1.0] * 9, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flow_sde", [1.041, 1.078, 1.077, 1.075, 1.076, 1.080, 1.093, 1.128, 1.289]),
        ("dance_sde", [1.000, 1.000, 1.000, 1.001, 1.001, 1.002, 1.004, 1.012, 1.065]),
    ],
)
def test_euler_maruyama_overshoots_as_measured(name: str, expected: list[float], grid_policy: Any) -> None:
    assert point_mass_ratios(sample_plan(grid_policy(), name, 10)) == pytest.approx(expected, abs=5.1e-4)


def test_more_noise_overshoots_more(grid_policy: Any) -> None:
    ratios = point_mass_ratios(sample_plan(grid_policy(), "flow_sde", 10, noise_level=0.9))
    assert (ratios[0], ratios[-1]) == pytest.approx((1.099, 1.442), abs=5.1e-4)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("ode", {}, [-0.0625, -0.0159, -0.0040, -0.0010]),
        ("ddim", {}, [-0.0980, -0.0262, -0.0067, -0.0017]),
        ("precise", {"noise_level": 0.7}, [-0.0703, -0.0181, -0.0046, -0.0011]),
        ("dance_sde", {}, [-0.0581, -0.0149, -0.0037, -0.0009]),
        ("flow_sde", {}, [0.0339, 0.0184, 0.0098, 0.0051]),
        ("cps", {"noise_level": 0.7}, [-0.1267, -0.0935, -0.0852, -0.0831]),
    ],
)
def test_the_error_on_gaussian_data_falls_with_the_number_of_steps(
    name: str, settings: dict[str, float], expected: list[float], grid_policy: Any
) -> None:
    errors = [gaussian_error(sample_plan(grid_policy(1.0), name, n, **settings)) for n in (10, 40, 160, 640)]
    assert errors == pytest.approx(expected, abs=5.1e-5)


@pytest.mark.slow
@in_one_test("name", ["ode", "ddim", "precise", "dance_sde"])
def test_consistent_samplers_converge_with_order_one(name: str, grid_policy: Any) -> None:
    coarse, fine = (gaussian_error(sample_plan(grid_policy(1.0), name, n)) for n in (320, 640))
    assert math.log2(coarse / fine) == pytest.approx(1, abs=0.02)


def test_flow_sde_converges_slowly(grid_policy: Any) -> None:
    coarse, fine = (gaussian_error(sample_plan(grid_policy(1.0), "flow_sde", n)) for n in (160, 640))
    assert math.log(coarse / fine, 4) == pytest.approx(0.48, abs=0.02)


@pytest.mark.slow
def test_coefficients_preserving_sampling_does_not_converge(grid_policy: Any) -> None:
    assert gaussian_error(sample_plan(grid_policy(1.0), "cps", 2000, noise_level=0.7)) == pytest.approx(
        -0.083, abs=1e-3
    )
