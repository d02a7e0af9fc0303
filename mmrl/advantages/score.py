"""The score itself as the advantage, without a comparison."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration


@dataclass(frozen=True)
class Score(Checked):
    """A = r - baseline, also in groups of one: REINFORCE (Williams 1992), and labels that the data brings.

    Without a baseline a reward that is never negative makes all samples likelier, and samples with high scores the
    most. With the win rate against one random member of the group (`compare: one`), times 2, and a baseline of 1, a won
    comparison counts 1 and a lost one -1, as in BRPO (Jia et al. 2025, "Writing-Zero", arXiv 2506.00103).

    Raises ValueError for a baseline that is not finite.
    """

    baseline: Annotated[float, Field(gt=-math.inf, lt=math.inf)] = 0.0  # what every score is compared with

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(min_group_size=1, compares_with="nothing")

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32; 0 for invalid samples."""
        return torch.where(scores.valid, scores.total - self.baseline, torch.zeros_like(scores.total))
