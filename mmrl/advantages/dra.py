"""Advantages of rewards that are divided among similar samples."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_sum

from .base.wrapper import Wrapper, reward_column, with_totals
from .grpo import Grpo


@dataclass(frozen=True)
class Dra(Wrapper):
    """The inner advantage of R_i / (1 + sum over the others of its group of their similarity to sample i).

    Chen et al. 2025, "DRA-GRPO: Your GRPO Needs to Know Diverse Reasoning Paths for Mathematical Reasoning",
    arXiv 2505.09655: the sum is the submodular mutual information of the graph cut. It comes from the reward
    `diversity`, 1 - the mean similarity to the others: `response_diversity` for texts (the paper: cosines of sentence
    embeddings), `diversity` for images, with weight 0. The sum runs over the valid others. A graph cut is submodular
    for similarities of at least 0: a sum below 0 counts as 0 here, and the reward stays as it is; the authors' code
    divides by 1 + any sum of cosines, which may come near 0 and turn the sign. So rewards are divided by 1 (alone, or
    unlike all others) to the number of samples (all alike). Rewards should not be below 0: similar samples would raise
    a negative reward. A sample whose `diversity` could not be judged counts as invalid: it enters no statistic and gets
    0.

    Raises ValueError for an inner advantage that is not of totals, or that compares with the best possible total
    (`ngrpo`), from which divided rewards are far. Raises RunError where there is no such reward.
    """

    inner: Advantage = field(default_factory=Grpo)  # the section of the advantage of the divided rewards
    diversity: str = "response_diversity"  # label of the reward that is 1 - a sample's mean similarity to the others

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_more_than_totals()
        if self.declaration.compares_with == "best":
            raise ValueError("inner compares with the best total, from which divided rewards are far; use 'grpo'")

    @property
    def declaration(self) -> AdvantageDeclaration:
        inner = super().declaration
        return replace(inner, requires_rewards=inner.requires_rewards | {self.diversity})

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], or [B, K] where the inner advantage is one of decisions."""
        return self.inner(*self.inner_batch(scores, paths))

    def inner_batch(self, scores: Scores, paths: Paths | None) -> tuple[Scores, Paths | None]:
        """Returns the same samples with their rewards divided."""
        different = reward_column(scores, self.diversity).double()
        judged = scores.valid & different.isfinite()  # a reward with weight 0 may fail at a valid sample
        others = (group_sum(judged.double(), scores.group) - 1).clamp(min=0)
        # float32 again: the spread of equal ones is then exactly 0
        adjusted = (scores.total.double() / (1 + others * (1 - different).clamp(min=0))).float()
        return replace(with_totals(scores, torch.where(judged, adjusted, 0.0)), valid=judged), paths
