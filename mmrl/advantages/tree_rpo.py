"""Advantages of the segments of a tree: GRPO among the segments that leave the same fork."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_sum

from .base.tree_segments import Stretches


@dataclass(frozen=True)
class TreeRpo(Checked):
    """A = (V(n) - mean) / (std + epsilon) over segment n and its siblings, which leave the same place.

    Yang et al. 2025, "TreeRPO", arXiv 2506.05183, section 3. V of an end is its reward, V of any other place the mean
    of its children's V, each counted once. The std is the population std of the siblings (`std: siblings`), or nothing
    is divided (`none`: then A = V(n) - V(parent)). Siblings with equal values get 0, as does an only child. In a group
    without shared decisions this is GRPO. Invalid samples enter no value and get 0.

    Raises ValueError for an epsilon below 0.
    """

    std: Literal["siblings", "none"] = "siblings"  # divide by the standard deviation of the siblings, or not at all
    epsilon: Annotated[float, Field(ge=0)] = 1e-4  # added to the standard deviation

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(
        compares_branches=True, is_per_decision=True, weighs_by_length=True
    )

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32; without `paths` [B, 1], as if samples were decisions."""
        tree = Stretches.of(scores, paths, "children")
        gain = tree.gain(tree.start)
        if self.std == "none":
            return tree.of_decisions(gain)
        fork = torch.cat([tree.root[:, None], tree.name], 1)  # [B, D + 1]: the place that each stretch leaves
        scaled = [self._scaled(gain[:, d], tree.share[:, d], fork[:, d]) for d in range(gain.shape[1])]
        return tree.of_decisions(torch.stack(scaled, 1) if scaled else gain)

    def _scaled(self, gain: Tensor, share: Tensor, fork: Tensor) -> Tensor:
        """Returns the gains [B] of one depth over the std of their fork, float64."""
        count = group_sum(share, fork).clamp(min=1e-9)
        spread = (group_sum(share * gain.square(), fork) / count).sqrt()
        return torch.where(spread > 0, gain / (spread + self.epsilon), 0.0)
