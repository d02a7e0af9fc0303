"""GSPO: the clipped policy gradient with one ratio for each whole answer."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from mmrl.core.contracts import LossBatch, Scope

from .base.ratio import path_mean
from .base.settings import check_one_of
from .grpo import Grpo


@dataclass(frozen=True)
class Gspo(Grpo):
    """GRPO's term with s = exp(mean over the sample's decisions of log(new / old)) in place of each decision's ratio.

    Zheng et al. 2025, "Group Sequence Policy Optimization", arXiv 2507.18071, eq. 5 to 7; the clip range is that of its
    section 5.1. With level "token" (eq. 13, GSPO-token) the value is the same and the gradient goes through each
    decision's own log-prob: no difference unless advantages differ within a sample, or leaves of a tree share decisions
    (with "token" these count as often as the batch says, 1 / n in each of n leaves; with "sequence" wholly).

    One decision a sample is GRPO. With normalise "constant" (constant 1) each sample counts as often as it has
    decisions, which is LUSPO's term.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    level: Literal["sequence", "token"] = "sequence"

    scope: ClassVar[Scope] = "path"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("level", self.level, ("sequence", "token"))

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = compared[0]
        shared = path_mean(log_ratio, batch.weight)
        if self.level == "token":
            shared = shared.detach() + (log_ratio - log_ratio.detach())
        return super().terms((shared,), batch)
