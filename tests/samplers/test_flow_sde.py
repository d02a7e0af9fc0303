import math
from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.plans.flow import Plan


def make_plan(policy: Any, num_steps: int, **settings: Any) -> Plan:
    sampler = build("samplers", {"name": "flow_sde", "num_steps": num_steps, "sigmas": "uniform", **settings})
    plan: Plan = sampler.plan(policy, GroupKey(0, 0, 0), 1)
    return plan


@pytest.mark.parametrize("shift", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("num_steps", [2, 10, 50])
@pytest.mark.parametrize("noise_level", [0.7, 1.2])
def test_the_first_std_is_the_noise_level(shift: float, num_steps: int, noise_level: float, grid_policy: Any) -> None:
    first = make_plan(grid_policy(shift), num_steps, noise_level=noise_level).steps[0].transition
    assert first.std == pytest.approx(noise_level)
    assert first.state == pytest.approx(1 - noise_level**2 / 2)


def test_later_stds_follow_the_paper(grid_policy: Any) -> None:
    for step in make_plan(grid_policy(), 10).steps[1:-1]:
        expected = 0.7 * math.sqrt(step.sigma / (1 - step.sigma) * (step.sigma - step.sigma_next))
        assert step.transition.std == pytest.approx(expected)


@pytest.mark.parametrize(("shift", "first"), [(3, 0.999666), (5, 0.9998), (8, 0.999875)])
def test_a_unipc_grid_that_starts_just_below_one_gets_no_more_noise(shift: float, first: float) -> None:
    """Else a first std of 5: docs/maths/traps.md#first-step-of-a-grid-that-starts-below-one."""
    even = [0.999 * (1 - n / 20) for n in range(20)]
    grid = [shift * sigma / (1 + (shift - 1) * sigma) for sigma in even]
    assert grid[0] == pytest.approx(first, abs=1e-6)
    plan = make_plan(None, 20, sigmas=[*grid, 0.0])
    assert 0.95 * 0.7 < plan.steps[0].transition.std <= 0.7
    assert plan.steps[0].transition.state == pytest.approx(1 - 0.7**2 / 2, abs=0.02)


@pytest.mark.parametrize("noise_level", [0, -0.7, 2.1])
def test_noise_levels_outside_the_range_are_refused(noise_level: float) -> None:
    with pytest.raises(ConfigError, match="noise_level must be above 0 and at most 2"):
        make_plan(None, 10, noise_level=noise_level)
