"""Advantages that are smaller where the answers of a group have different meanings."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_sum

from .base.wrapper import Wrapper, reward_column
from .dr_grpo import DrGrpo


@dataclass(frozen=True)
class SeedGrpo(Wrapper):
    """The inner advantage times 1 - alpha * SE / log n, SE the semantic entropy of the group's n answers.

    Chen et al. 2025, "SEED-GRPO: Semantic Entropy Enhanced GRPO for Uncertainty-Aware Policy Optimization", arXiv
    2505.12346: SE = -(mean over clusters of log p(cluster)), with the paper's linear factor and inner advantage, the
    reward minus the mean of the group. Answers with the same meaning are a cluster, and p is its share of the answers
    (the paper adds up their likelihoods). The reward `votes` gives each sample the share of its own cluster:
    `majority_vote` with `soft: true` and weight 0. Samples without an answer (share 0) do not count. The alpha is ours.

    Raises ValueError for an alpha outside of [0, 1], RunError where there is no such reward.
    """

    votes: str = "majority_vote"  # label of the reward that gives each answer its share of the votes
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5  # weight of the semantic entropy; 0: the inner advantage
    inner: Advantage = field(default_factory=DrGrpo)  # the section of the advantage that is made smaller

    @property
    def declaration(self) -> AdvantageDeclaration:
        inner = super().declaration
        return replace(inner, requires_rewards=inner.requires_rewards | {self.votes})

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], or [B, K] where the inner advantage is one of decisions."""
        advantages = self.inner(scores, paths)
        factor = (1 - self.alpha * self.uncertainty(scores)).to(advantages.dtype)
        return advantages * (factor if advantages.dim() == 1 else factor[:, None])

    def uncertainty(self, scores: Scores) -> Tensor:
        """Returns SE / log n [B] of each sample's group, float64 in [0, 1]; 0 with fewer than two answers."""
        share = reward_column(scores, self.votes).double()
        is_vote = scores.valid & (share > 0)
        share = torch.where(is_vote, share, torch.ones_like(share))
        # each member of a cluster of size m has 1 / m of it: 1 / share, up to a factor that the group shares
        part = is_vote / share
        clusters = group_sum(part, scores.group)
        entropy = group_sum(-part * share.log(), scores.group) / torch.where(clusters > 0, clusters, 1.0)
        count = group_sum(is_vote.double(), scores.group)
        most = torch.where(count > 1, count, 2.0).log()
        return torch.where(count > 1, entropy / most, torch.zeros_like(entropy)).clamp(0, 1)
