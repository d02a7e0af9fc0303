"""Neighbor GRPO: a choice among neighbours in place of random steps.

Maths: docs/maths/group-relative-losses.md#neighbor-grpo
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mmrl.core.contracts import OutputsByWeights

from .grpo import Grpo


@dataclass(frozen=True)
class Neighbor(Grpo):
    """GRPO of the policy that chooses, at the state of an anchor, which of the next states at hand to go on as.

    He et al. 2025, "Neighbor GRPO", arXiv 2511.16955, eq. 8 and 9: member i of a group is chosen with probability
    softmax_i(-|x_i - x|^2 / temperature), x_i its next state and x where the weights lead from the anchor's; its
    ratio to that of the weights that drew is clipped, and taken with its advantage. Sampler `neighbor` says how many
    anchors there are, at which steps, and the temperature. With random steps that branch it is the choice among the
    children of a state, by their densities.

    All that was drawn from a state is chosen from, members that are not learned from too. A network call has all of its
    draws beside it, so micro-batches change nothing. A state with one draw has nothing to choose, and teaches nothing.
    Before the first update has changed anything, and where advantages of a group add up to 0, the gradient is that of
    `grpo` on the same decisions: what the choice takes off is then 0. The penalty `kl: exact` is of the Gaussians, a
    squared distance of the next states of anchors. The clip is of a true probability; the range is ours, that of PPO.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    min_group_size: ClassVar[int] = 2

    @property
    def requires(self) -> frozenset[str]:
        return super().requires | {"choice"}

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        return (forward_outputs.trained.choice_log_ratio(forward_outputs.old),)
