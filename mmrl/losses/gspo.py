"""GSPO: the clipped policy gradient with one ratio for each whole answer."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, Scope

from .base.ratio import path_mean
from .grpo import Grpo


@dataclass(frozen=True)
class Gspo(Grpo):
    """GRPO's term with s = exp(mean over the sample's decisions of log(new / old)) in place of each decision's ratio.

    Zheng et al. 2025, "Group Sequence Policy Optimization", arXiv 2507.18071, eq. 5 to 7; the clip range is that of its
    section 5.1. With level "token" (eq. 13, GSPO-token) the value is the same and the gradient goes through each
    decision's own log-prob. This makes no difference unless advantages differ within a sample, or leaves of a tree
    share decisions: a decision shared by n leaves counts 1 / n in each with "token", and wholly with "sequence".

    With one decision per sample this is GRPO. With normalise "constant" (constant 1) each sample counts as often as it
    has decisions, which is LUSPO's term.
    """

    clip_low: Annotated[float, Field(gt=0, le=1)] = 3e-4  # the ratio s is clipped to 1 - clip_low ... 1 + clip_high
    clip_high: Annotated[float, Field(gt=0)] = 4e-4  # see `clip_low`
    # `token` has the same value, and the gradient of each token by its own advantage (GSPO-token).
    level: Literal["sequence", "token"] = "sequence"

    scope: ClassVar[Scope] = "path"

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = compared[0]
        shared = path_mean(log_ratio, batch.weight)
        if self.level == "token":
            shared = shared.detach() + (log_ratio - log_ratio.detach())
        return super().terms((shared,), batch)
