"""Direct group preference optimization: the good and the bad half of a group as one pair.

Maths: docs/maths/denoising-losses.md#dgpo
"""

from dataclasses import dataclass

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.data import WeightsName
from mmrl.core.numerics import group_sum

from .base.denoising import DenoisingLoss, Sharing, velocity_error
from .base.settings import check_above, check_one_of


@dataclass(frozen=True)
class Dgpo(DenoisingLoss):
    """sigmoid(s) A l with s = sum over the group of A beta (l - l_reference) / G, the sigmoid without a gradient.

    Luo et al. 2025, "Reinforcing Diffusion Models by Direct Group Preference Optimization", arXiv 2510.08425; constants
    of Luo-Yihong/DGPO. l = mean (v - v*)^2 at one noise level and noise for the whole group. The gradient is that of
    -log sigmoid(-s) divided by beta: at G = 2 and A = +-1 that of Flow-DPO. With `clip` a member whose ratio
    exp(l_averaged - l) has left 1 +- clip in the direction of its advantage takes no part (theirs: 0.01, which needs
    `averaging`). `compared_with` is what l_reference is of; the averaged weights make the loss an online one.

    Raises ValueError for settings out of range.
    """

    draws: int = 4
    levels: Sharing = "group"
    noise: Sharing = "group"
    reference_weight: float = 0.02
    beta: float = 100.0
    clip: float | None = None
    compared_with: WeightsName = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("beta", self.beta)
        if self.clip is not None:
            check_above("clip", self.clip)
        check_one_of("compared_with", self.compared_with, ("reference", "averaged"))

    @property
    def scope(self) -> Scope:
        return "group"

    @property
    def needs(self) -> frozenset[WeightsName]:
        clipped: frozenset[WeightsName] = frozenset({"averaged"} if self.clip is not None else ())
        return super().needs | {self.compared_with} | clipped

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """l of the trained weights, of those compared with and, to clip, of the averaged ones; the penalties."""
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
