from typing import Any

from mmrl.keys import GroupKey
from mmrl.plugins import build


def test_ode_decides_nothing_and_starts_every_sample_from_its_own_noise(grid_policy: Any) -> None:
    plan = build("samplers", {"name": "ode", "num_steps": 4}).plan(grid_policy(), GroupKey(0, 0, 0), 6)
    assert (plan.roots, plan.num_rollout_calls, plan.num_update_calls) == (6, 24, 0)
    assert not any(step.is_random for step in plan.steps)


def test_ode_can_take_a_single_step(grid_policy: Any) -> None:
    (step,) = build("samplers", {"name": "ode", "num_steps": 1, "sigmas": [1, 0]}).plan(grid_policy(), None, 1).steps
    assert (step.transition.state, step.transition.velocity, step.transition.std) == (1.0, -1.0, 0.0)
