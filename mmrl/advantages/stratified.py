"""Advantages that compare a sample with those of its group that went the same way: strata of turns or tool calls."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_sum

from .base.episodes import joint
from .base.wrapper import Wrapper, reward_column
from .grpo import Grpo

TURNS = "turns"


@dataclass(frozen=True)
class Stratified(Wrapper):
    """A = alpha A_stratum + (1 - alpha) A_group: the inner advantage in a sample's stratum, and in its whole group.

    Zhu et al. 2025, "Stratified GRPO: Handling Structural Heterogeneity in Reinforcement Learning of LLM Search
    Agents", arXiv 2510.06214: a stratum holds the trajectories of a prompt with the same number of search calls. Its
    stratified advantage normalisation is (R - mean) / (std + epsilon) within the stratum, and the blend is linear. A
    group alone compares trajectories of different structure: the mean of a stratum less that of the group is then an
    offset for all of its members. With `alpha: 0`, or where all of a group are in one stratum, this is the inner
    advantage; a sample alone in its stratum has the second term only. The paper's alpha was not at hand; 0.5 is ours.

    Strata are by the number of `turns` of an episode, or by what a reward counts, such as the calls of a tool or the
    boxes of an answer, mostly with weight 0: its sum over the turns where it judges turns or samples, to six digits.
    Samples that it could not judge are a stratum of their own.

    Raises ValueError for settings out of range, and for an inner advantage that compares more than the totals of a
    group; RunError where there is no such reward.
    """

    by: Annotated[str, Field(min_length=1)] = (
        TURNS  # what makes a stratum: `turns` of the episode, or the label of a reward that counts
    )
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5  # weight of the comparison within a stratum; 0: the group alone
    inner: Advantage = field(default_factory=Grpo)  # the section of the advantage in a stratum and in the group

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_more_than_totals()
        if self.declaration.compares_branches:
            raise ValueError("inner must compare whole samples, and not the branches of a tree")

    @property
    def declaration(self) -> AdvantageDeclaration:
        inner = super().declaration
        return inner if self.by == TURNS else replace(inner, requires_rewards=inner.requires_rewards | {self.by})

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], or [B, K] where the inner advantage is one of decisions."""
        return self.alpha * self.inner(self._in_strata(scores), paths) + (1 - self.alpha) * self.inner(scores, paths)

    def update_mask(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the samples [B] or decisions [B, K] (bool) that one of the two comparisons learns from."""
        return super().update_mask(scores, paths) | super().update_mask(self._in_strata(scores), paths)

    def strata(self, scores: Scores) -> Tensor:
        """Returns the number of turns of each sample's episode, or what the reward counted in it: [B] float64."""
        if self.by == TURNS:
            return group_sum(torch.ones(len(scores.group), dtype=torch.float64), scores.episode)
        counted = reward_column(scores, self.by).double()
        granularities = scores.granularities or ("sample",) * len(scores.names)
        if granularities[scores.names.index(self.by)] not in ("episode", "group"):
            counted = group_sum(counted, scores.episode)
        return torch.where(counted.isfinite(), counted.round(decimals=6), torch.inf)

    def _in_strata(self, scores: Scores) -> Scores:
        """Returns the same samples with each stratum of a group as a group of its own."""
        number: Tensor = self.strata(scores).unique(return_inverse=True)[1]
        return replace(scores, group=joint(scores.group, number))
