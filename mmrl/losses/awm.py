"""Advantage weighted matching: the clipped policy gradient with the flow-matching loss in place of log-probs.

Maths: docs/maths/denoising-losses.md#advantage-weighted-matching
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.forward_outputs import Denoising
from mmrl.core.numerics import LARGEST_LOG_RATIO

from .base.denoising import Sigmas, velocity_error
from .base.old_decay import OldDecay, OldDenoisingLoss

Weighting = Literal["l", "t_l", "t2_l", "huber", "ghuber"]
Ratio = Literal["exp_first", "sum_first"]

DELTA = 1e-10  # under the roots of the Huber weightings, as in the paper's code


@dataclass(frozen=True)
class Awm(OldDenoisingLoss):
    """The clipped policy gradient max(-A rho, -A clip(rho, 1 - clip, 1 + clip)) with rho = exp(w_old - w).

    Xue et al. 2025, "Advantage Weighted Matching: Aligning RL with Pretraining in Diffusion Models", arXiv 2509.25050;
    constants of scxue/advantage_weighted_matching. w is a weighting of the flow-matching loss: with l = mean (v - v*)^2
    at noise level t, `l` is l, `t_l` t l, `t2_l` t^2 l, `huber` t (sqrt(l + d) - sqrt(d)) and `ghuber`
    t ((l + d)^p - d^p) / p. `exp_first` takes the ratio of each noise sample, `sum_first` that of the sample, from the
    mean of w over its noise samples. A is clipped to +-advantage_max and divided by it. The paper samples `draws`
    levels from the sampler's grid without the first step, pure noise, and has a reference_weight of 0.001 (0.003 for
    OCR) and an averaged_weight of 1.

    Without a `decay` the old weights are the trained weights themselves, which is right for one optimizer step per
    rollout (the gradient is then A / advantage_max times that of w). For more steps `decay` keeps a copy of them;
    `{slope: 0}` keeps those that sampled the rollout. The paper's averaged weights are min(0.3, 0.001 n) times the old
    ones plus the rest of the trained ones; here they are those of `averaging` (0.3 after the first 300 steps).

    Raises ValueError for settings out of range.
    """

    draws: Annotated[int, Field(ge=1, le=10_000)] = 6  # noise samples of each sample for each optimizer step
    sigmas: Sigmas = "grid"  # how noise levels are sampled; `grid`: from the sampler's own levels
    # The smallest and the largest noise level; the default leaves out the first step, pure noise.
    sigma_range: tuple[float, float] = (0.0, 0.999)
    # The weighting w of the flow-matching loss l: `l`, `t_l` (t l), `t2_l` (t^2 l), `huber`,
    # t (sqrt(l + d) - sqrt(d)), or `ghuber`, t ((l + d)^p - d^p) / p.
    weighting: Weighting = "ghuber"
    power: Annotated[float, Field(gt=0)] = 0.25  # p of `ghuber`
    # `exp_first`: the ratio of each noise sample; `sum_first`: of the sample, from the mean over its noise samples.
    ratio: Ratio = "exp_first"
    clip: Annotated[float, Field(gt=0)] = 1.0  # the ratio is clipped to 1 - clip ... 1 + clip
    advantage_max: Annotated[float, Field(gt=0)] = 5.0  # advantages are clipped to this size and divided by it
    # How slowly old weights follow; `null`: old weights are the trained ones, for one optimizer step per rollout.
    decay: OldDecay | None = None

    @property
    def scope(self) -> Scope:
        return "decision" if self.ratio == "exp_first" else "path"

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns w of the trained and of the old weights, then the penalties' squared distances: [B, K] each."""
        return (
            self._weighted(forward_outputs.trained),
            self._weighted(forward_outputs.old),
            *self.penalties(forward_outputs),
        )

    def _weighted(self, at: Denoising) -> Tensor:
        error, sigma = velocity_error(at), at.spread(at.sigma)
        if self.weighting == "l":
            return error
        if self.weighting in ("t_l", "t2_l"):
            return error * sigma.pow(1 if self.weighting == "t_l" else 2)
        power = 0.5 if self.weighting == "huber" else self.power
        root = (error + DELTA).pow(power) - float(DELTA**power)
        return sigma * (root if self.weighting == "huber" else root / power)

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        error, old_error, *penalties = measures
        log_ratio = old_error - error
        if self.ratio == "sum_first":
            weight = batch.weight / batch.weight.sum(1, keepdim=True).clamp(min=1e-12)
            log_ratio = (log_ratio * weight).sum(1, keepdim=True).expand_as(error)
        ratio = log_ratio.clamp(max=LARGEST_LOG_RATIO).exp()
        advantages = batch.advantages.clamp(-self.advantage_max, self.advantage_max) / self.advantage_max
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        is_clipped = ((ratio - 1).abs() > self.clip).to(ratio.dtype)
        terms = (-advantages * ratio).maximum(-advantages * clipped)
        return self.penalised(terms, penalties, {"matching": error, "ratio": ratio, "clip_fraction": is_clipped})
