"""Answers as the leaves of a tree of segments."""

from dataclasses import dataclass
from math import prod
from typing import Any

from mmrl.core.keys import GroupKey
from mmrl.core.numerics import check_count
from mmrl.plans.answers import SegmentTree as SegmentTreePlan

from .base.tokens import LONGEST, TreeOfAnswers, settings_of

DEEPEST = 100  # a tree of two children each has 2^depth leaves


@dataclass(frozen=True, kw_only=True)
class SegmentTree(TreeOfAnswers):
    """Every segment of `segment_tokens` tokens is followed by `branch` segments, `depth` of them to an answer.

    Yang et al. 2025, "TreeRPO", arXiv 2506.05183, section 3.1 (branch 8, depth 3, 384 tokens); Guo et al. 2025,
    "Segment Policy Optimization", arXiv 2505.23564, section 4.2 (SPO-tree: branch 6, depth 3, 600 tokens). `branch` may
    name a number for each depth. The last segments run to the end of the answer or of `max_tokens`. A segment that
    ends the answer has no children, so a tree may have fewer leaves. Tokens are drawn as by `autoregressive`, and with
    depth 1 so are the answers. A group is the leaves of one tree: one of more is several such trees under one prompt,
    one of fewer a tree of the first depths only.
    """

    segment_tokens: int
    branch: int | tuple[int, ...]
    depth: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("segment_tokens", self.segment_tokens, most=LONGEST)
        check_count("depth", self.depth, most=DEEPEST)
        if min(self._branches) < 1 or len(self._branches) != self.depth:
            raise ValueError(
                f"branch must be at least 1, one number or one for each depth {self.depth}, got {self.branch}"
            )

    @property
    def _branches(self) -> tuple[int, ...]:
        return (self.branch,) * self.depth if isinstance(self.branch, int) else self.branch

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> SegmentTreePlan:
        """The same for every group. Raises ValueError where no whole tree makes `group_size` leaves."""
        answers = settings_of(self, policy, key, group_size)
        return SegmentTreePlan(**answers, segment_tokens=self.segment_tokens, branch=self._branch(group_size))

    def _branch(self, group_size: int) -> tuple[int, ...]:
        leaves = [prod(self._branches[: depth + 1]) for depth in range(self.depth)]
        if group_size % leaves[-1] == 0:
            return (self._branches[0] * (group_size // leaves[-1]), *self._branches[1:])
        if group_size in leaves:
            return self._branches[: leaves.index(group_size) + 1]
        raise ValueError(
            f"group_size must be a multiple of {leaves[-1]} leaves (branch {' x '.join(map(str, self._branches))}), or "
            f"the leaves of fewer depths, one of {', '.join(map(str, leaves[:-1])) or 'none'}; got {group_size}"
        )
