"""Answers that fork where the policy was least certain."""

from dataclasses import dataclass
from typing import Any, get_args

from mmrl.core.keys import GroupKey
from mmrl.plans.answers import ForkTree, Uncertainty

from .base.tokens import TreeOfAnswers, settings_of


@dataclass(frozen=True, kw_only=True)
class EntropyTree(TreeOfAnswers):
    """A few answers; then `rounds` times the `forks` least certain tokens of each one's tree get `branch` others.

    Hou et al. 2025, "TreeRL", arXiv 2506.11902, section 3.1 (EPTree: 6 answers, forks 2, rounds 1, branch 2). `by`: the
    tokens drawn from the distributions of highest `entropy`, or those of lowest `probability` (the published code of
    THUDM/TreeRL, and the cut points of Guo et al. 2025, "Segment Policy Optimization", arXiv 2505.23564). A fork draws
    its token anew and goes on to the end; it is never an answer's first token, which would be another chain, and no
    token forks twice. Answers shorter than the forks they should have make fewer leaves. Tokens are drawn as by
    `autoregressive`, and without rounds so are the answers. A group is the leaves of one tree: its size must be a
    multiple of 1 + rounds * forks * branch, and says how many answers there are at first.
    """

    forks: int
    rounds: int
    branch: int
    by: Uncertainty = "entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("forks", "branch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.rounds < 0:
            raise ValueError(f"rounds must be at least 0, got {self.rounds}")
        if self.by not in get_args(Uncertainty):
            raise ValueError(f"by must be one of {', '.join(get_args(Uncertainty))}, got {self.by!r}")

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> ForkTree:
        """The same for every group. Raises ValueError where no whole trees make `group_size` leaves."""
        leaves = 1 + self.rounds * self.forks * self.branch
        if group_size % leaves:
            raise ValueError(
                f"group_size must be a multiple of 1 + rounds x forks x branch = 1 + {self.rounds} x {self.forks} x "
                f"{self.branch} = {leaves}, got {group_size}"
            )
        answers, shape = settings_of(self, policy, key, group_size), (self.rounds, self.forks, self.branch)
        return ForkTree(
            **answers, chains=group_size // leaves, rounds=shape[0], forks=shape[1], branch=shape[2], by=self.by
        )
