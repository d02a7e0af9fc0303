"""What trees of answers cost at most, counted by hand, and what is none."""

from typing import Any

import pytest

from mmrl.plans.answers import ForkTree, SegmentTree
from tests.parameters import in_one_test


def test_a_tree_of_segments_has_branch_to_the_depth_leaves_and_a_call_for_each_node() -> None:
    plan = SegmentTree(8, 12, segment_tokens=3, branch=(2, 2, 2))
    assert (plan.num_roots, plan.num_rollout_calls, plan.num_update_calls) == (2, 2 + 4 + 8, 14)
    assert plan.max_sampled_tokens == 2 * 3 + 4 * 3 + 8 * 6
    assert plan.splits == {3: 2, 6: 2} and plan.is_bound
    assert plan.shared_work == {
        "prompt_reads": 1,
        "prompt_reads without sharing": 8,
        "tokens drawn at most": 66,
        "tokens drawn at most without sharing": 96,
    }


def test_an_only_child_goes_on_with_its_parents_call() -> None:
    plan = SegmentTree(6, 12, segment_tokens=2, branch=(3, 1, 2))
    assert (plan.num_rollout_calls, plan.splits) == (3 + 6, {4: 2})
    alone = SegmentTree(4, 12, segment_tokens=2, branch=(4, 1))
    assert (alone.num_rollout_calls, alone.max_sampled_tokens, alone.splits) == (4, 48, {})


def test_the_published_tree_of_forks_has_30_leaves() -> None:
    plan = ForkTree(30, 100, chains=6, rounds=1, forks=2, branch=2)
    assert plan.num_roots == 6
    assert plan.num_rollout_calls == 6 * (3 + 4)  # a chain with two forks is three stretches; four others leave it
    assert plan.max_sampled_tokens == 6 + 30 * 99
    assert ForkTree(4, 9, chains=4).num_rollout_calls == 4


@in_one_test(
    ("kind", "settings", "message"),
    [
        (SegmentTree, {"branch": (2, 2)}, "branch 2 x 2 has 4 leaves, got a group of 8"),
        (SegmentTree, {"branch": (2, 4), "segment_tokens": 9}, "segment_tokens .* a token of max_tokens 9, got 9"),
        (SegmentTree, {"branch": (8,), "temperature": 0}, "temperature above 0"),
        (SegmentTree, {"branch": (8,), "num_controls": 1}, "no controls"),
        (SegmentTree, {"branch": (8,), "has_greedy": True}, "no controls"),
        (ForkTree, {"chains": 2, "rounds": 1, "forks": 2}, r"2 x \(1 \+ 1 x 2 x 1\) = 6, got a group of 8"),
        (ForkTree, {"chains": 8, "forks": 0}, "at least 1"),
    ],
)
def test_what_is_no_tree_is_refused(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(num_samples=8, max_tokens=9, **settings)
