"""Settings of trees of segments, and the plan they become."""

from typing import Any

import pytest

from mmrl.core.contracts import ConfigError
from mmrl.core.keys import GroupKey
from mmrl.core.plugins import build
from mmrl.plans.answers import SegmentTree
from tests.parameters import in_one_test


def plan(group_size: int, **settings: Any) -> SegmentTree:
    made = {"name": "segment_tree", "max_tokens": 64, "segment_tokens": 4, "branch": 2, "depth": 3, **settings}
    planned: SegmentTree = build("samplers", made).plan(None, GroupKey(0, 1, 2), group_size)
    return planned


def test_the_settings_reach_the_plan() -> None:
    expected = SegmentTree(8, 64, 0.7, stop=("a",), masks_truncated=True, segment_tokens=4, branch=(2, 2, 2))
    assert plan(8, temperature=0.7, stop=["a"], truncated="mask") == expected
    assert plan(24, branch=[4, 3, 2]).branch == (4, 3, 2)


def test_a_larger_group_is_more_trees_under_the_prompt_and_a_smaller_one_has_fewer_depths() -> None:
    assert [plan(size).branch for size in (16, 8, 4, 2)] == [(4, 2, 2), (2, 2, 2), (2, 2), (2,)]
    with pytest.raises(ValueError, match=r"a multiple of 8 leaves .branch 2 x 2 x 2., or .* one of 2, 4; got 6"):
        plan(6)


@in_one_test(
    ("settings", "message"),
    [
        ({"segment_tokens": 0}, "segment_tokens must be at least 1 and at most 1,000,000, got 0"),
        ({"depth": 10**9}, "depth must be at least 1 and at most 100, got 1000000000"),
        ({"depth": 0}, "depth must be at least 1 and at most 100, got 0"),
        ({"branch": 0}, "branch must be at least 1"),
        ({"branch": [2, 2]}, "one for each depth 3"),
        ({"temperature": 0}, "temperature must be above 0: all children of a fork would be the same"),
        ({"controls": 1}, "no controls"),
        ({"greedy": True}, "no greedy answer"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(8, **settings)


def test_an_answer_must_be_longer_than_the_segments_before_the_last() -> None:
    with pytest.raises(ValueError, match="leave the segments of depth 3 a token of max_tokens 8, got 4"):
        plan(8, max_tokens=8)
