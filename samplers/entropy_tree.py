"""Answers that fork where the policy was least certain."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.plans.answers import ForkTree, Uncertainty

from .base.tokens import TreeOfAnswers, settings_of


@dataclass(frozen=True, kw_only=True)
class EntropyTree(TreeOfAnswers):
    """A sampler of first answers whose `forks` least certain tokens get `branch` other continuations, `rounds` times.

    Hou et al. 2025, "TreeRL", arXiv 2506.11902, section 3.1 (EPTree: 6 answers, forks 2, rounds 1, branch 2).
    `by: probability` is the published code of THUDM/TreeRL, and the rule for the cut points of Guo et al. 2025,
    "Segment Policy Optimization", arXiv 2505.23564. A fork samples its token anew and goes on to the end. The first
    token of an answer never forks, for that would be another first answer, and no token forks twice. Answers with fewer
    tokens than forks make fewer leaves. Tokens are sampled as by `autoregressive`; with 0 rounds the answers are too. A
    group is the leaves of one tree: its size must be a multiple of 1 + rounds * forks * branch, and the factor is the
    number of first answers.
    """

    forks: Annotated[int, Field(ge=1)]  # tokens of the tree of each first answer that fork in a round
    rounds: Annotated[int, Field(ge=0)]  # how often tokens fork; 0: plain answers
    branch: Annotated[int, Field(ge=1)]  # new answers behind each fork
    # The least certain tokens: those from the distributions of highest `entropy`, or those of lowest `probability`.
    by: Uncertainty = "entropy"

    def plan(self, policy: Any, key: GroupKey, group_size: int) -> ForkTree:
        """Returns the plan of a group, the same for every group. Raises ValueError for a size of no whole trees."""
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
