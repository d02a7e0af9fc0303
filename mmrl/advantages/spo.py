"""Advantages of the segments of a tree: the value behind a segment minus the value before it."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration

from .tree_rpo import TreeRpo


@dataclass(frozen=True)
class Spo(Checked):
    """A = V(end of the segment) - V(its start), for tokens that were sampled with a probability below `cut`.

    Guo et al. 2025, "Segment Policy Optimization", arXiv 2505.23564, section 4: Monte-Carlo values of a tree (the
    value of an end is its reward, that of another place the mean of its children's values), and the probability mask,
    which gives a segment's credit to its cut points alone (0.9 in the paper). The other tokens take no part in the
    update and its denominators. `cut: null` masks nothing: `tree_rpo` without a std. Invalid samples enter no value and
    get 0.

    Raises ValueError for a cut outside of (0, 1].
    """

    # Only tokens that were sampled with a probability below this are learned from; `null`: all.
    cut: Annotated[float, Field(gt=0, le=1)] | None = 0.9

    @property
    def declaration(self) -> AdvantageDeclaration:
        """The declaration: the mask requires the probability of each token."""
        is_masked = self.cut is not None
        return AdvantageDeclaration(
            requires=frozenset({"log_prob"} if is_masked else ()),
            requires_probabilities=is_masked,
            is_per_decision=True,
            weighs_by_length=True,
        )

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32; without `paths` [B, 1], as if samples were decisions."""
        return TreeRpo(std="none")(scores, paths)

    def update_mask(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the cut points [B, K] (bool); all samples [B] where nothing is masked."""
        if self.cut is None or paths is None or not paths.edge.shape[1]:
            return torch.ones(len(scores.group), dtype=torch.bool)
        return (paths.edge >= 0) & (paths.facts["log_prob"] < math.log(self.cut))
