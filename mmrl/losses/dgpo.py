"""DGPO, direct group preference optimization: the good and the bad half of a group as one pair.

Maths: docs/maths/denoising-losses.md#dgpo
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.data import WeightsName
from mmrl.core.numerics import group_sum

from .base.denoising import DenoisingLoss, Sharing, velocity_error


@dataclass(frozen=True)
class Dgpo(DenoisingLoss):
    """The term sigmoid(s) A l, s = sum over the group of A beta (l - l_reference) / G, the sigmoid without a gradient.

    Luo et al. 2025, "Reinforcing Diffusion Models by Direct Group Preference Optimization", arXiv 2510.08425; constants
    of Luo-Yihong/DGPO. l = mean (v - v*)^2 at one noise level and noise for the whole group. The gradient is that of
    -log sigmoid(-s) divided by beta: at G = 2 and A = +-1 that of Flow-DPO. With `clip` a member whose ratio
    exp(l_averaged - l) has left 1 +- clip in the direction of its advantage has no gradient (the authors take 0.01).
    `compared_with: averaged` takes l_reference of the averaged weights, which makes the loss an online one.

    Raises ValueError for settings out of range.
    """

    draws: Annotated[int, Field(ge=1, le=10_000)] = 4  # noise samples of each sample for each optimizer step
    levels: Sharing = "group"  # the members of a `group` share their noise levels, or each `sample` has its own
    noise: Sharing = "group"  # the members of a `group` share their noise, or each `sample` has its own
    # Weight of the squared distance of the velocity to the reference's; 0 saves its network call.
    reference_weight: Annotated[float, Field(ge=0)] = 0.02
    beta: Annotated[float, Field(gt=0)] = 100.0  # times the weighted difference of errors under the sigmoid
    # A member whose ratio exp(l_averaged - l) has left 1 - clip ... 1 + clip in the direction of its advantage has no
    # gradient; needs `averaging`. `null`: none is clipped.
    clip: Annotated[float, Field(gt=0)] | None = None
    # The weights whose errors those of the policy are compared with.
    compared_with: Literal["reference", "averaged"] = "reference"

    @property
    def scope(self) -> Scope:
        return "group"

    @property
    def needs(self) -> frozenset[WeightsName]:
        clipped: frozenset[WeightsName] = frozenset({"averaged"} if self.clip is not None else ())
        return super().needs | {self.compared_with} | clipped

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns l [B, K] of the trained weights, of `compared_with` and, for a clip, of the averaged ones.

        The squared distances of the penalties follow, [B, K] each.
        """
        others = [self.compared_with, *(["averaged"] if self.clip is not None else [])]
        errors = [velocity_error(getattr(forward_outputs, which)) for which in ("trained", *others)]
        return (*errors, *self.penalties(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        error, compared, *rest = measures
        kept, metrics = error, {"matching": error}
        if self.clip is not None:
            ratio = (rest.pop(0) - error).exp()
            side = batch.advantages.sign()
            is_clipped = side * (ratio - 1) > self.clip
            kept, metrics["clip_fraction"] = error.where(~is_clipped, error.detach()), is_clipped.to(error.dtype)
        counts = (batch.weight > 0).to(error.dtype)
        gain = batch.advantages * (error - compared) * counts
        size = group_sum(counts, batch.group).clamp(min=1)
        preference = self.beta * group_sum(gain, batch.group) / size  # s
        terms = preference.sigmoid().detach() * batch.advantages * kept
        return self.penalised(terms, rest, metrics | {"preference": preference})
