"""OPMD: REINFORCE with a squared log-ratio that keeps the policy near the one that made the samples."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, Scope
from mmrl.core.numerics import Normalisation

from .base.log_ratios import AnchoredLoss
from .base.ratio import path_sum


@dataclass(frozen=True)
class Opmd(AnchoredLoss):
    """The term -A log(new / anchor) + tau / 2 log(new / anchor)^2, online policy mirror descent.

    Kimi Team 2025, "Kimi k1.5", arXiv 2501.12599, equation 3, as Yao et al. 2025, "Group-Relative REINFORCE Is Secretly
    an Off-Policy Algorithm", arXiv 2509.24203, place it: REINFORCE and a regulariser, right on samples of any policy.
    Level "sequence" squares the log-ratio of a whole sample, as in Kimi's equation, and "token" that
    of each decision, as the latter's code (Trinity-RFT) does, whose coefficient is tau / 2 here. There is no importance
    ratio and no clip. Anchor constants have no gradient, so tau 0 is REINFORCE. Take an advantage without std.

    Raises ValueError for settings out of range.
    """

    tau: Annotated[float, Field(ge=0)] = 1.0  # weight of the squared log-ratio, in units of the advantage
    # The log-ratio that is squared is that of the whole `sequence`, or of each `token`.
    level: Literal["sequence", "token"] = "sequence"
    # What counts alike: each decision, sample or group; under `constant` a sample counts by its sum.
    normalise: Normalisation = "constant"

    scope: ClassVar[Scope] = "path"

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = compared[0]
        whole = path_sum(log_ratio, batch.weight) if self.level == "sequence" else log_ratio
        # the sum of whole * log_ratio over a sample's decisions is the square of whole
        return -batch.advantages * log_ratio + self.tau / 2 * whole * log_ratio, {"shift": whole.detach().abs()}
