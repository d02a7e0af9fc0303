"""GRPO: the clipped policy gradient, for tokens and for denoising steps."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.ratio import RatioLoss, ratio_of


@dataclass(frozen=True)
class Grpo(RatioLoss):
    """The term max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)) of each decision, rho = new / old likelihood.

    Shao et al. 2024, "DeepSeekMath", arXiv 2402.03300, eq. 3; Schulman et al. 2017, arXiv 1707.06347, eq. 7. The
    default range 1e-4 is that of Liu et al. 2025, "Flow-GRPO", arXiv 2505.05470, for log-probs averaged over a latent's
    d elements; with another reduction the same range is d (sum) or sqrt(d) (rms) times larger. Tokens use 0.2.

    `dual_clip` c: where A < 0 the term is at most -c A, so that a ratio above c has no gradient (Ye et al. 2020,
    arXiv 1912.09729). The two-sided cap `delta` of INTELLECT-2 (arXiv 2505.07291) and TRL is the same.

    Its variants by settings:
      DAPO (Yu et al. 2025, arXiv 2503.14476): clip_low 0.2, clip_high 0.28, normalise decision.
      Dr. GRPO (Liu et al. 2025, arXiv 2503.20783): normalise constant with constant = the sampler's max_tokens, and an
          advantage without std.
      bnpo of TRL: normalise decision; TRL divides by the tokens of a micro-batch, this loss by those of the whole step.
      PPO with dual clip, as verl and EasyR1 run it: dual_clip 3.

    Raises ValueError for settings out of range.
    """

    # The ratio is clipped to 1 - clip_low ... 1 + clip_high; the unit is that of `modality.reduction`.
    clip_low: Annotated[float, Field(gt=0, le=1)] = 1e-4
    clip_high: Annotated[float, Field(gt=0)] = 1e-4  # see `clip_low`
    # Where the advantage is negative, a ratio above this has no gradient (3 in verl and EasyR1; TRL's `delta`);
    # at least 1 + clip_high, or `null`: no such bound.
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dual_clip is not None and not self.dual_clip >= 1 + self.clip_high:
            raise ValueError(f"dual_clip must be at least 1 + clip_high = {1 + self.clip_high:g}, got {self.dual_clip}")

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        advantages, low, high = batch.advantages, 1 - self.clip_low, 1 + self.clip_high
        ratio = ratio_of(compared[0])
        terms = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(low, high))
        metrics = {
            "ratio": ratio,
            "clip_fraction_low": ((advantages < 0) & (ratio < low)).to(ratio.dtype),
            "clip_fraction_high": ((advantages > 0) & (ratio > high)).to(ratio.dtype),
        }
        if self.dual_clip is not None:
            terms = torch.where(advantages < 0, torch.minimum(terms, -self.dual_clip * advantages), terms)
            metrics["clip_fraction_dual"] = ((advantages < 0) & (ratio > self.dual_clip)).to(ratio.dtype)
        return terms, metrics
