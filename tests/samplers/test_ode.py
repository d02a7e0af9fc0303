from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from tests.parameters import in_one_test


def test_ode_decides_nothing_and_starts_every_sample_from_its_own_noise(grid_policy: Any) -> None:
    plan = build("samplers", {"name": "ode", "num_steps": 4}).plan(grid_policy(), GroupKey(0, 0, 0), 6)
    assert (plan.roots, plan.num_rollout_calls, plan.num_update_calls) == (6, 24, 0)
    assert not any(step.is_random for step in plan.steps)


def test_ode_can_take_a_single_step(grid_policy: Any) -> None:
    (step,) = build("samplers", {"name": "ode", "num_steps": 1, "sigmas": [1, 0]}).plan(grid_policy(), None, 1).steps
    assert (step.transition.state, step.transition.velocity, step.transition.std) == (1.0, -1.0, 0.0)


@in_one_test(("solver", "calls"), [("euler", 24), ("dpmpp_2m", 24), ("unipc", 24), ("heun", 42)])
def test_a_solver_runs_on_the_same_grid(solver: str, calls: int, grid_policy: Any) -> None:
    plan = build("samplers", {"name": "ode", "num_steps": 4, "solver": solver}).plan(
        grid_policy(), GroupKey(0, 0, 0), 6
    )
    assert (plan.num_samples, plan.num_rollout_calls, plan.num_update_calls) == (6, calls, 0)
    assert list(dict.fromkeys(plan.paths[0].levels)) == grid_policy().sigmas("pipeline", 4)[:4]
    assert plan.paths[0].last_level == 0


def test_other_solvers_are_refused() -> None:
    with pytest.raises(ConfigError, match="solver"):
        build("samplers", {"name": "ode", "num_steps": 4, "solver": "dpm3"})
