"""GMPO: the policy gradient on the geometric mean of a sample's clipped ratios."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, Scope

from .base.ratio import RatioLoss, path_mean, ratio_of


@dataclass(frozen=True)
class Gmpo(RatioLoss):
    """The term -A exp(mean over the sample's decisions of the clipped log-ratio).

    Zhao et al. 2025, "Geometric-Mean Policy Optimization", arXiv 2507.20673: each decision is clipped before the
    mean, on the side that GRPO clips (above where A > 0, below where A < 0), to [exp(-clip_low), exp(clip_high)], as in
    verl; the authors' code has one range for both.

    With one decision per sample this is GRPO with clip_low 1 - exp(-clip_low) and clip_high exp(clip_high) - 1.

    Raises ValueError for settings out of range.
    """

    # In nats, the paper's values: a ratio is at least exp(-clip_low) where the advantage is negative ...
    clip_low: Annotated[float, Field(gt=0)] = 0.4
    clip_high: Annotated[float, Field(gt=0)] = 0.4  # ... and at most exp(clip_high) where the advantage is positive

    scope: ClassVar[Scope] = "path"

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio, advantages = compared[0], batch.advantages
        clipped = torch.where(advantages > 0, log_ratio.clamp(max=self.clip_high), log_ratio.clamp(min=-self.clip_low))
        ratio = ratio_of(path_mean(clipped, batch.weight))
        metrics = {
            "ratio": ratio,
            "clip_fraction_low": ((advantages < 0) & (log_ratio < -self.clip_low)).to(ratio.dtype),
            "clip_fraction_high": ((advantages > 0) & (log_ratio > self.clip_high)).to(ratio.dtype),
        }
        return -advantages * ratio, metrics
