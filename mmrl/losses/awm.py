"""Advantage weighted matching: the clipped policy gradient with the flow-matching loss in place of log-probs.

Maths: docs/maths/denoising-losses.md#advantage-weighted-matching
"""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.forward_outputs import Denoising
from mmrl.core.numerics import LARGEST_LOG_RATIO

from .base.denoising import Sigmas, velocity_error
from .base.old_decay import OldDecay, OldDenoisingLoss
from .base.settings import check_above, check_one_of

Weighting = Literal["l", "t_l", "t2_l", "huber", "ghuber"]
Ratio = Literal["exp_first", "sum_first"]

DELTA = 1e-10  # under the roots of the Huber weightings, as in the paper's code


@dataclass(frozen=True)
class Awm(OldDenoisingLoss):
    """max(-A rho, -A clip(rho, 1 - clip, 1 + clip)), rho = exp(w_old - w), w a weighting of the flow-matching loss.

    Xue et al. 2025, "Advantage Weighted Matching: Aligning RL with Pretraining in Diffusion Models", arXiv 2509.25050;
    constants of scxue/advantage_weighted_matching. With l = mean (v - v*)^2 at noise level t, w is `l`, `t_l` t l,
    `t2_l` t^2 l, `huber` t (sqrt(l + d) - sqrt(d)) or `ghuber` t ((l + d)^p - d^p) / p. `exp_first` takes the ratio of
    each draw, `sum_first` that of the sample, from the mean of w over its draws. A is clipped to +-advantage_max and
    divided by it. The paper draws `draws` levels from the sampler's grid without the first step, pure noise, and has a
    reference_weight of 0.001 (0.003 for OCR) and an averaged_weight of 1.

    Old are the weights themselves, which is right for one optimizer step per rollout (the gradient is then
    A / advantage_max times that of w); for more `decay` keeps a copy of them, `{slope: 0}` those that drew the rollout.
    The paper's averaged weights are min(0.3, 0.001 n) times the old ones and the rest trained ones; here they are those
    of `averaging` (0.3 after the first 300 steps).

    Raises ValueError for settings out of range.
    """

    draws: int = 6
    sigmas: Sigmas = "grid"
    sigma_range: tuple[float, float] = (0.0, 0.999)
    weighting: Weighting = "ghuber"
    power: float = 0.25  # p of ghuber
    ratio: Ratio = "exp_first"
    clip: float = 1.0
    advantage_max: float = 5.0
    decay: OldDecay | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("power", "clip", "advantage_max"):
            check_above(name, getattr(self, name))
        for name, allowed in (("weighting", Weighting), ("ratio", Ratio)):
            check_one_of(name, getattr(self, name), get_args(allowed))

    @property
    def scope(self) -> Scope:
        return "decision" if self.ratio == "exp_first" else "path"

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """w of the trained and of the old weights, and the squared distances of the penalties: [B, K] each."""
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
        bent = (error + DELTA).pow(power) - float(DELTA**power)
        return sigma * (bent if self.weighting == "huber" else bent / power)

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
