"""Samplers with fans: TempFlow, G2RPO and E-GRPO, their published calls, their grids, and what they fall back to."""

from itertools import pairwise
from typing import Any

import pytest

from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.plans.flow import Path, Plan
from tests.parameters import in_one_test

KEY = GroupKey(3, 5, 7)


def plan_of(policy: Any, name: str, group_size: int, **settings: Any) -> Plan:
    plan: Plan = build("samplers", {"name": name, "sigmas": "uniform", **settings}).plan(policy, KEY, group_size)
    return plan


def way(plan: Plan, path: Path, grid: list[float]) -> list[int]:
    """Places of the grid that the samples of a path pass."""
    levels: list[float] = []
    steps = path.steps
    while True:
        levels = [step.sigma for step in steps] + levels
        if path.parent is None:
            break
        parent = plan.paths[path.parent]
        steps, path = parent.steps[: path.start - parent.start], parent
    return [grid.index(level) for level in levels] + [len(grid) - 1]


def test_tempflow_fans_out_at_every_step_of_the_papers_trunk(grid_policy: Any) -> None:
    """T = 10, 4 seeds, 6 children: 24 * (9 + 8 + ... + 1) calls behind the fans and 4 * 9 of the trunk.

    The authors' 1120 hold 4 more, which finish a trunk that is no sample.
    """
    plan = plan_of(grid_policy(), "tempflow", 24)
    assert (plan.roots, plan.num_samples) == (4, 9 * 24)
    assert (plan.num_rollout_calls, plan.num_update_calls) == (24 * 45 + 4 * 9, 4 * 9)
    assert sorted(path.group for path in plan.paths) == list(range(0, 36, 4))
    for path in plan.paths:
        random = [path.start + n for n, step in enumerate(path.steps) if step.is_random]
        assert random == [path.group // 4] and path.num_ends == 24
        assert next(step for step in path.steps if step.is_random).branch == 6


def test_tempflow_compares_the_children_of_one_seed(grid_policy: Any) -> None:
    """The paper's groups of 6: as one root each would be, but that the prompt has one trunk of four."""
    plan = plan_of(grid_policy(), "tempflow", 24)
    assert plan.num_compared == 6
    assert sorted(number for path in plan.paths for number in path.groups) == sorted(list(range(36)) * 6)
    for path in plan.paths:
        assert path.groups == [path.group + root for root in range(4) for _ in range(6)]
    whole = plan_of(grid_policy(), "tempflow", 24, compare="prompt")
    assert [path.groups for path in whole.paths] == [[n] * 24 for n in (path.group for path in whole.paths)]
    assert sorted(path.group for path in whole.paths) == list(range(9)) and whole.num_compared == 24
    assert plan_of(grid_policy(), "tempflow", 6, roots=1) == plan_of(
        grid_policy(), "tempflow", 6, roots=1, compare="prompt"
    )


def test_g2rpo_finishes_every_child_with_both_strides(grid_policy: Any) -> None:
    """T = 16, fans at steps 0 to 7; behind step k the grid goes on as k + 1, k + 2, then by ones or twos."""
    policy = grid_policy()
    grid = policy.sigmas("uniform", 16)
    plan = plan_of(policy, "g2rpo", 12)
    assert (plan.roots, plan.num_samples, plan.num_update_calls) == (1, 8 * 2 * 12, 8)
    seen = {path.group: way(plan, path, grid) for path in plan.paths}
    assert sorted(seen) == list(range(16))
    for k in range(8):
        assert seen[2 * k] == list(range(17))
        coarse = [*range(k + 2), *range(k + 2, 17, 2)]
        assert seen[2 * k + 1] == [*coarse[:-1], 16]
    own = 8 + 12 * sum(15 - k for k in range(8))  # the trunk, and the fine ways
    coarse_calls = 12 * sum(len(way) - 1 - (k + 3) for k, way in ((k, seen[2 * k + 1]) for k in range(8)))
    assert plan.num_rollout_calls == own + coarse_calls


def test_the_jumps_of_e_grpo_follow_each_other(grid_policy: Any) -> None:
    """With the stds 0.70, 0.72, 0.75 and 0.68 of 16 steps, shift 3, where single steps fall to 0.37."""
    policy = grid_policy()
    grid = policy.sigmas("uniform", 16)
    plan = plan_of(policy, "e_grpo", 12)
    jumps = {path.group: next(step for step in path.steps if step.is_random) for path in plan.paths}
    ends = [(grid.index(jumps[n].sigma), grid.index(jumps[n].sigma_next)) for n in range(4)]
    assert ends == [(0, 1), (1, 2), (2, 4), (4, 7)]
    assert [jumps[n].transition.std for n in range(4)] == pytest.approx([0.70, 0.723, 0.749, 0.683], abs=5e-4)
    for path in plan.paths:
        first, last = ends[path.group]
        assert way(plan, path, grid) == [*range(first + 1), *range(last, 17)]
    assert (plan.num_samples, plan.num_update_calls) == (48, 4)
    assert plan.num_rollout_calls == 5 + 12 * (15 + 14 + 12 + 9)


@pytest.mark.parametrize("step", [0, 3, 8])
def test_one_fan_is_flow_sde_with_a_window_of_one_and_shared_noise(step: int, grid_policy: Any) -> None:
    window = {"mode": "range", "first": step, "last": step + 1}
    flow = plan_of(grid_policy(), "flow_sde", 12, num_steps=10, window=window, share_noise=True)
    tempflow = plan_of(grid_policy(), "tempflow", 12, roots=1, window=window)
    g2rpo = plan_of(grid_policy(), "g2rpo", 12, num_steps=10, granularities=[1], window=window)
    assert tempflow == g2rpo == flow


def test_e_grpo_without_merging_is_tempflow_from_one_root(grid_policy: Any) -> None:
    e_grpo = plan_of(grid_policy(), "e_grpo", 12, num_steps=10, merged=[1, 1, 1])
    assert e_grpo == plan_of(grid_policy(), "tempflow", 12, roots=1, window={"mode": "range", "last": 3})


def test_strides_longer_than_what_is_left_are_left_out(grid_policy: Any) -> None:
    """Behind a fan at the last step but one there is one step, whatever the stride."""
    plan = plan_of(grid_policy(), "g2rpo", 2, num_steps=4, window={}, granularities=[1, 2])
    assert sorted(path.group for path in plan.paths) == [0, 1, 2, 4]
    assert all(path.steps[-1].sigma_next == 0 for path in plan.paths)


def test_every_step_begins_where_the_one_before_ends_and_the_last_ends_at_0(grid_policy: Any) -> None:
    for name in ("tempflow", "g2rpo", "e_grpo"):
        for path in plan_of(grid_policy(), name, 12, granularities=[1, 2, 3]).paths:
            assert all(step.sigma_next == after.sigma for step, after in pairwise(path.steps))
            assert path.steps[-1].sigma_next == 0


def test_the_places_of_fans_may_differ_from_group_to_group(grid_policy: Any) -> None:
    sampler = build("samplers", {"name": "tempflow", "window": {"mode": "subset", "size": 2}})
    plans = [sampler.plan(grid_policy(), GroupKey(0, 0, plan_of), 8) for plan_of in range(20)]
    assert len({tuple(path.start for path in plan.paths) for plan in plans}) > 1
    assert {plan.num_tree_steps for plan in plans} == {10}  # so that processes agree on the calls of a rollout


@in_one_test(
    ("settings", "message"),
    [
        ({"name": "tempflow", "roots": 0}, "roots must be at least 1, got 0"),
        ({"name": "tempflow", "noise_level": 2.5}, "noise_level must be above 0 and at most 2, got 2.5"),
        (
            {"name": "g2rpo", "granularities": []},
            "granularities must be different strides of the grid, at least 1, got",
        ),
        ({"name": "g2rpo", "granularities": [1, 1]}, "granularities must be different"),
        ({"name": "g2rpo", "granularities": [0]}, r"granularities\.0 must be at least 1, got 0"),
        ({"name": "e_grpo", "merged": []}, "merged must be counts of steps"),
        ({"name": "e_grpo", "merged": [0, 1]}, r"merged\.0 must be at least 1, got 0"),
        ({"name": "e_grpo", "merged": [8, 8]}, "that leave the last of the 16 steps out, got .8, 8."),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("samplers", settings)


def test_a_group_is_a_multiple_of_its_roots(grid_policy: Any) -> None:
    with pytest.raises(ValueError, match=r"group_size must be a multiple of roots \(4\), got 6"):
        plan_of(grid_policy(), "tempflow", 6)
    with pytest.raises(ValueError, match="compare 'seed' needs two children of each of 4 roots, got 4 in all"):
        plan_of(grid_policy(), "tempflow", 4)
