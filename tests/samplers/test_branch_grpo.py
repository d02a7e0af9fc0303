"""BranchGRPO's trees: splits, noise, pruning, and what they fall back to."""

from typing import Any

import pytest

from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.plans.flow import Plan
from tests.parameters import in_one_test

KEY = GroupKey(3, 5, 7)


def make(**settings: Any) -> Any:
    return build("samplers", {"name": "branch_grpo", **settings})


def plan_of(policy: Any, group_size: int = 16, key: GroupKey = KEY, **settings: Any) -> Plan:
    plan: Plan = make(**settings).plan(policy, key, group_size)
    return plan


def test_the_papers_tree_makes_203_calls_in_rollout_and_187_in_update(grid_policy: Any) -> None:
    """T = 20: 1 + 3 * 2 + 3 * 4 + 3 * 8 + 10 * 16; the 16 states before the last step decide nothing."""
    plan = plan_of(grid_policy())
    assert (plan.roots, plan.num_samples) == (1, 16)
    assert (plan.num_rollout_calls, plan.num_update_calls) == (203, 187)
    assert plan.shared_work == {"calls of a rollout without sharing": 320}
    assert [number for number, step in enumerate(plan.steps) if step.branch > 1] == [0, 3, 6, 9]


@in_one_test("splits", [(), (0,), (1, 4), (0, 1, 2)])
def test_a_tree_has_two_leaves_to_the_power_of_its_splits(splits: tuple[int, ...], grid_policy: Any) -> None:
    plan = plan_of(grid_policy(), 2 ** len(splits), num_steps=8, splits=splits)
    assert (plan.roots, plan.num_samples) == (1, 2 ** len(splits))


def test_splits_draw_four_times_the_noise_and_no_other_mean(grid_policy: Any) -> None:
    plan, dance = plan_of(grid_policy()), build("samplers", {"name": "dance_sde", "num_steps": 20})
    for step, plain in zip(plan.steps, dance.plan(grid_policy(), KEY, 16).steps, strict=True):
        assert (step.transition.state, step.transition.velocity) == (plain.transition.state, plain.transition.velocity)
        assert step.transition.std == pytest.approx(plain.transition.std * (4 if step.branch > 1 else 1))


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_without_splits_it_is_dance_sde_from_separate_latents(fraction: float, grid_policy: Any) -> None:
    """And so, with its constant g, Flow-GRPO on chains."""
    dance = build("samplers", {"name": "dance_sde", "num_steps": 20, "share_noise": False, "train_fraction": fraction})
    for group_size in (1, 7, 16):
        plan = plan_of(grid_policy(), group_size, splits=[], train_fraction=fraction)
        assert plan == dance.plan(grid_policy(), KEY, group_size)


def test_larger_groups_are_several_trees_and_smaller_ones_split_at_the_first_steps(grid_policy: Any) -> None:
    assert (plan_of(grid_policy(), 48).roots, plan_of(grid_policy(), 48).num_samples) == (3, 48)
    small = plan_of(grid_policy(), 4)
    assert (small.roots, small.num_samples) == (1, 4)
    assert [number for number, step in enumerate(small.steps) if step.branch > 1] == [0, 3]


@pytest.mark.parametrize("group_size", [3, 12, 24])
def test_groups_of_no_whole_trees_are_refused(group_size: int, grid_policy: Any) -> None:
    with pytest.raises(ValueError, match=f"multiple of 16 leaves .* smaller power of 2, got {group_size}"):
        plan_of(grid_policy(), group_size)


def test_the_mix_variant_is_random_inside_the_window_and_at_splits(grid_policy: Any) -> None:
    plan = plan_of(grid_policy(), window={"mode": "range", "last": 4})
    assert [number for number, step in enumerate(plan.steps) if step.is_random] == [0, 1, 2, 3, 6, 9]
    assert plan.num_update_calls == 1 + 2 + 2 + 2 + 4 + 8


@in_one_test(
    ("iteration", "steps"),
    [
        (0, [14, 15, 16]),
        (29, [14, 15, 16]),
        (30, [13, 14, 15]),
        (179, [9, 10, 11]),
        (180, [8, 9, 10]),
        (9999, [8, 9, 10]),
    ],
)
def test_pruned_depths_move_up_until_the_last_split(iteration: int, steps: list[int], grid_policy: Any) -> None:
    """Depths 15, 16, 17 belong to the edges of steps 14, 15, 16; the first of them stops at depth 9."""
    plan = plan_of(grid_policy(), key=GroupKey(0, iteration, 0), pruned_depths=[15, 16, 17])
    assert [number for number, step in enumerate(plan.steps) if step.is_random and not step.is_trained] == steps
    assert plan.num_rollout_calls == 203
    assert plan.num_update_calls == 187 - sum(plan.num_nodes()[number] for number in steps)


def test_depths_above_the_last_split_stay(grid_policy: Any) -> None:
    plan = plan_of(grid_policy(), key=GroupKey(0, 99, 0), pruned_depths=[4], pruned_every=1)
    assert [number for number, step in enumerate(plan.steps) if step.is_random and not step.is_trained] == [3]


def test_pruning_all_is_refused(grid_policy: Any) -> None:
    with pytest.raises(ValueError, match="pruned_depths leaves no random step to train"):
        plan_of(grid_policy(), 1, num_steps=3, splits=[], pruned_depths=[1, 2])


@in_one_test(
    ("settings", "message"),
    [
        ({"splits": [3, 0]}, "splits must ascend within 0 to 18, got"),
        ({"splits": [0, 0]}, "splits must ascend within 0 to 18"),
        ({"splits": [19]}, "splits must ascend within 0 to 18, got .19."),
        ({"pruned_depths": [0]}, "pruned_depths must ascend within 1 to 20, got .0."),
        ({"branch": 1}, "branch must be at least 2, got 1"),
        ({"pruned_every": 0}, "pruned_every must be at least 1, got 0"),
        ({"split_noise": 0}, "split_noise must be above 0, got 0"),
        ({"noise_level": 0}, "noise_level must be above 0, got 0"),
        ({"share_noise": True}, "has no field 'share_noise'"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)
