"""Advantages of the segments of a tree: the value behind a segment minus those at the root and before the segment."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration

from .base.tree_segments import Stretches


@dataclass(frozen=True)
class TreeRl(Checked):
    """A = (global_weight * (V(n) - V(root)) + local_weight * (V(n) - V(parent))) * L(n)^leaf_power.

    Hou et al. 2025, "TreeRL", arXiv 2506.11902, equations 2 to 4. V is the mean reward of the valid samples that pass a
    place, and L(n) their number behind segment n; a segment goes from fork to fork, and its decisions have its A. In a
    group
    without shared decisions V(n) is the sample's reward and A = 2 (R - mean): GRPO without a std.

    The paper trains every leaf's answer, where a segment counts L(n) times; here it counts once in all, so that
    `leaf_power` 0.5 has the paper's sums where -0.5 has the formula as printed. (The code of THUDM/TreeRL can add V(n)
    itself, which is not done here.) Invalid samples enter no value and get 0.

    Raises ValueError for weights below 0.
    """

    global_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of the comparison with the prompt
    local_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of the comparison with the place before the segment
    # Times the number of answers that pass the segment to this power; 0.5 has the paper's sums, since a segment counts
    # once here, and in the paper once for each of its answers.
    leaf_power: float = -0.5

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(
        compares_branches=True, is_per_decision=True, weighs_by_length=True
    )

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32; without `paths` [B, 1], as if samples were decisions."""
        tree = Stretches.of(scores, paths, "leaves")
        gain = self.global_weight * tree.gain(tree.origin[:, None]) + self.local_weight * tree.gain(tree.start)
        return tree.of_decisions(gain * tree.leaves.clamp(min=1) ** self.leaf_power)
