"""Answers as the leaves of a tree of segments."""

from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.plans.answers import SegmentTree as SegmentTreePlan

from .base.tokens import LONGEST, TreeOfAnswers, settings_of

DEEPEST = 100  # a tree of two children each has 2^depth leaves


@dataclass(frozen=True, kw_only=True)
class SegmentTree(TreeOfAnswers):
    """A sampler of trees of segments: each segment is followed by `branch` segments, and `depth` make an answer.

    Yang et al. 2025, "TreeRPO", arXiv 2506.05183, section 3.1 (branch 8, depth 3, 384 tokens); Guo et al. 2025,
    "Segment Policy Optimization", arXiv 2505.23564, section 4.2 (SPO-tree: branch 6, depth 3, 600 tokens). The last
    segments run to the end of the answer or of `max_tokens`. A segment that ends the answer has no children, so a tree
    may have fewer leaves. Tokens are sampled as by `autoregressive`; with depth 1 the answers are too. A group is the
    leaves of one tree. A larger group is several such trees under one prompt, a smaller group a tree of the first
    depths only.
    """

    segment_tokens: Annotated[int, Field(ge=1, le=LONGEST)]  # tokens of a segment; the last segments run to the end
    # Segments that follow a segment, or the prompt; a list: one number for each depth, the first behind the prompt.
    branch: Annotated[int, Field(ge=1)] | tuple[Annotated[int, Field(ge=1)], ...]
    depth: Annotated[int, Field(ge=1, le=DEEPEST)]  # segments of an answer

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for another count of branches than of depths."""
        super().__post_init__()
        if len(self._branches) != self.depth:
            raise ValueError(
                f"branch must be at least 1, one number or one for each depth {self.depth}, got {self.branch}"
            )

    @property
    def _branches(self) -> tuple[int, ...]:
        return (self.branch,) * self.depth if isinstance(self.branch, int) else self.branch

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> SegmentTreePlan:
        """Returns the plan of a group, the same for every group. Raises ValueError for a size of no whole tree."""
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
