"""GMPO: the policy gradient on the geometric mean of a sample's clipped ratios."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, Scope

from .base.ratio import RatioLoss, path_mean, ratio_of
from .base.settings import check_above


@dataclass(frozen=True)
class Gmpo(RatioLoss):
    """-A exp(mean over the sample's decisions of the clipped log-ratio).

    Zhao et al. 2025, "Geometric-Mean Policy Optimization", arXiv 2507.20673: each decision is clipped before the
    mean, on the side that GRPO clips (above where A > 0, below where A < 0), to [exp(-clip_low), exp(clip_high)], as in
    verl; the authors' code has one range for both.

    One decision a sample is GRPO with clip_low 1 - exp(-clip_low) and clip_high exp(clip_high) - 1.

    Raises ValueError for settings out of range.
    """

    clip_low: float = 0.4  # nats of a log-ratio; the paper's (e^-0.4, e^0.4)
    clip_high: float = 0.4

    scope: ClassVar[Scope] = "path"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("clip_low", "clip_high"):
            check_above(name, getattr(self, name))

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio, advantages = compared[0], batch.advantages
        held = torch.where(advantages > 0, log_ratio.clamp(max=self.clip_high), log_ratio.clamp(min=-self.clip_low))
        ratio = ratio_of(path_mean(held, batch.weight))
        metrics = {
            "ratio": ratio,
            "clip_fraction_low": ((advantages < 0) & (log_ratio < -self.clip_low)).to(ratio.dtype),
            "clip_fraction_high": ((advantages > 0) & (log_ratio > self.clip_high)).to(ratio.dtype),
        }
        return -advantages * ratio, metrics
