"""The score itself as the advantage, without a comparison."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration


@dataclass(frozen=True)
class Score:
    """A = r, also in groups of one: REINFORCE without a baseline (Williams 1992), and labels that the data brings.

    A reward that is never negative makes all samples likelier, and samples with high scores the most.
    """

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(min_group_size=1, compares_with="nothing")

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32; 0 for invalid samples."""
        return torch.where(scores.valid, scores.total, torch.zeros_like(scores.total))
