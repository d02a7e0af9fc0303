"""Neighbor GRPO: a choice among neighbors in place of random steps.

Maths: docs/maths/group-relative-losses.md#neighbor-grpo
"""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import OutputsByWeights
from mmrl.core.declarations import LossDeclaration

from .grpo import Grpo


@dataclass(frozen=True)
class Neighbor(Grpo):
    """GRPO of a policy that chooses, at the state of an anchor, one of the next states of the group's members.

    He et al. 2025, "Neighbor GRPO", arXiv 2511.16955, eq. 8 and 9: member i of a group is chosen with probability
    softmax_i(-|x_i - x|^2 / temperature), x_i its next state and x the next state of the anchor under the weights. The
    ratio of this probability to that under the old weights is clipped, and multiplied by the advantage. The sampler
    `neighbor` sets the number of anchors, their steps, and the temperature. With random steps that branch, the choice
    is among the children of a state, by their densities.

    The choice is among all samples from a state, including members that are not learned from. The trace keeps them
    beside each network call, so micro-batches change nothing. A state with a single sample teaches nothing. Before the
    first update, and where advantages of a group add up to 0, the gradient is that of `grpo` on the same decisions: the
    normaliser of the softmax then adds 0. The penalty `kl: exact` is that of the Gaussians, a squared distance of the
    next states of anchors. The clip is on a ratio of true probabilities; the range is ours, that of PPO.
    """

    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2  # the ratio is clipped to 1 - clip_low ... 1 + clip_high
    clip_high: Annotated[float, Field(gt=0)] = 0.2  # see `clip_low`

    @property
    def declaration(self) -> LossDeclaration:
        inner = super().declaration
        return replace(inner, min_group_size=2, requires=inner.requires | {"choice"})

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        return (forward_outputs.trained.choice_log_ratio(forward_outputs.old),)
