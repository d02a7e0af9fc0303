"""The short tails of MixGRPO-Flash."""

from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.plans.flow import Plan
from tests.parameters import in_one_test

KEY = GroupKey(0, 0, 0)


def plan(grid_policy: Any, first: int, last: int, num_steps: int = 25, **tail: Any) -> Plan:
    window = {"mode": "range", "first": first, "last": last}
    settings = {"name": "flow_sde", "num_steps": num_steps, "sigmas": "uniform", "window": window, "tail": tail}
    found: Plan = build("samplers", settings).plan(grid_policy(1.0), KEY, 12)
    return found


@in_one_test(
    ("first", "ratio", "steps"),
    [(0, 0.4, 7), (0, 0.2, 3), (4, 0.4, 6), (10, 0.4, 3), (17, 0.4, 1), (20, 0.4, 1), (0, 1.0, 21)],
)
def test_as_many_steps_as_the_authors_points_less_one_and_always_one(
    first: int, ratio: float, steps: int, grid_policy: Any
) -> None:
    """l = first + 3 is the last random step; their points are max(floor(ratio (25 - l)), 1)."""
    found = plan(grid_policy, first, first + 4, ratio=ratio)
    assert found.tail is not None
    assert steps == max(int(max((25 - first - 3) * ratio, 1)) - 1, 1)
    assert len(found.tail.sigmas) == steps + 1
    assert found.num_rollout_calls == 12 * (first + 4 + steps)
    assert found.num_update_calls == 48


def test_on_an_even_grid_the_levels_are_the_authors_linspace(grid_policy: Any) -> None:
    found = plan(grid_policy, 0, 4)
    assert found.tail is not None
    theirs = [(1 - 4 / 25) * (1 - n / 7) for n in range(8)]
    assert found.tail.sigmas == pytest.approx(theirs, abs=1e-12)


def test_a_late_window_still_ends_where_the_grid_does(grid_policy: Any) -> None:
    """The authors' code stops at the last random state there, which is noisy."""
    found = plan(grid_policy, 20, 24)
    assert found.tail is not None and found.tail.sigmas == pytest.approx((1 / 25, 0.0))


def test_a_full_tail_has_the_levels_of_the_grid(grid_policy: Any) -> None:
    """Ratio 1 makes one step of T - l points less one: all that the grid has."""
    policy = grid_policy()
    window = {"mode": "range", "last": 3}
    sampler = build("samplers", {"name": "cps", "num_steps": 10, "window": window, "tail": {"ratio": 1}})
    found = sampler.plan(policy, KEY, 2)
    assert list(found.tail.sigmas) == pytest.approx(policy.sigmas("pipeline", 10)[3:])


def test_a_shared_beginning_fans_out_before_the_tail(grid_policy: Any) -> None:
    settings = {"name": "flow_sde", "num_steps": 10, "share_noise": True, "tail": {"solver": "heun", "ratio": 0.5}}
    sampler = build("samplers", settings | {"window": {"mode": "range", "first": 1, "last": 3}})
    found = sampler.plan(grid_policy(), KEY, 6)  # 4 points: 3 steps by Heun, 5 calls
    assert (found.num_samples, found.num_rollout_calls, found.num_update_calls) == (6, 2 + 6 + 6 * 5, 7)


@pytest.mark.parametrize(("ratio", "bound"), [(0, "above 0, got 0"), (1.5, "at most 1, got 1.5")])
def test_ratios_outside_the_range_are_refused(ratio: float, bound: str) -> None:
    with pytest.raises(ConfigError, match=f"tail.ratio must be {bound}"):
        build("samplers", {"name": "cps", "num_steps": 10, "tail": {"ratio": ratio}})
