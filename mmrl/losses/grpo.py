"""GRPO: the clipped policy gradient, for tokens and for denoising steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.contracts import Evaluations, LossBatch, LossTerms
from mmrl.data import WeightsName
from mmrl.losses._decisions import DecisionLoss
from mmrl.numerics import LARGEST_LOG_RATIO


@dataclass(frozen=True)
class Grpo(DecisionLoss):
    """max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)) of each decision, rho = new / old likelihood.

    Shao et al. 2024, "DeepSeekMath", arXiv 2402.03300, eq. 3; Schulman et al. 2017, arXiv 1707.06347, eq. 7. The
    default range 1e-4 is that of Liu et al. 2025, "Flow-GRPO", arXiv 2505.05470, for log-probs averaged over a latent's
    d elements; with another reduction the same range is d (sum) or sqrt(d) (rms) times larger. Tokens use 0.2.

    Raises ValueError for settings out of range.
    """

    clip_low: float = 1e-4
    clip_high: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.clip_low <= 1:
            raise ValueError(f"clip_low must be in (0, 1], got {self.clip_low}")
        if not self.clip_high > 0:
            raise ValueError(f"clip_high must be above 0, got {self.clip_high}")

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {"old"}

    def measure(self, evaluations: Evaluations) -> tuple[Tensor, ...]:
        """The log-ratio to the old weights, and the KL if there is a penalty: [B, K] each."""
        return (evaluations.trained.log_ratio(evaluations.old), *self.divergence(evaluations))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        log_ratio, *divergence = measures
        advantages, low, high = batch.advantages, 1 - self.clip_low, 1 + self.clip_high
        # unbounded, the backward pass of a clipped decision would be 0 * inf = NaN
        ratio = log_ratio.clamp(max=LARGEST_LOG_RATIO).exp()
        terms = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(low, high))
        metrics = {
            "ratio": ratio,
            "log_ratio_size": log_ratio.abs(),
            "clip_fraction_low": ((advantages < 0) & (ratio < low)).to(ratio.dtype),
            "clip_fraction_high": ((advantages > 0) & (ratio > high)).to(ratio.dtype),
        }
        return self.penalised(terms, tuple(divergence), metrics)
