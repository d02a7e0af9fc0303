"""Advantages of the segments of a tree: how much better it is behind them than before them."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.advantages.tree_rpo import TreeRpo
from mmrl.data import Paths, Scores


@dataclass(frozen=True)
class Spo:
    """A = V(end of the segment) - V(its start), for tokens that were drawn with a probability below `cut`.

    Guo et al. 2025, "Segment Policy Optimization", arXiv 2505.23564, section 4: Monte-Carlo values of a tree (an end's
    is its reward, another place's the mean of its children's), and the probability mask, by which a segment's credit
    goes to its cut points alone (0.9 in the paper); the other tokens take no part in the update and its denominators.
    `cut: null` masks nothing: `tree_rpo` without a std. Invalid samples enter no value and get 0.

    Raises ValueError for a cut outside of (0, 1].
    """

    cut: float | None = 0.9

    min_group_size: ClassVar[int] = 2
    of_decisions: ClassVar[bool] = True
    weighs_decisions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.cut is not None and not 0 < self.cut <= 1:
            raise ValueError(f"cut must be above 0 and at most 1, or null for no mask, got {self.cut}")

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(() if self.cut is None else {"log_prob"})

    @property
    def reads_probabilities(self) -> bool:
        """Whether it takes log-probs for those of tokens; a density's may be above 0."""
        return self.cut is not None

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B, K] float32; without `paths` [B, 1], as if samples were decisions."""
        return TreeRpo(std="none")(scores, paths)

    def keeps(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B, K] bool: the cut points; all samples [B] where nothing is masked."""
        if self.cut is None or paths is None or not paths.edge.shape[1]:
            return torch.ones(len(scores.group), dtype=torch.bool)
        return (paths.edge >= 0) & (paths.facts["log_prob"] < math.log(self.cut))
