"""Policy gradients with the evidence lower bound in place of log-probs: EPG, PEPG and PAR.

Maths: docs/maths/denoising-losses.md#elbo-policy-gradients
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights
from mmrl.core.forward_outputs import Denoising
from mmrl.core.numerics import LARGEST_LOG_RATIO

from .base.denoising import clean_error, velocity_error
from .base.old_decay import OldDecay, OldDenoisingLoss

Form = Literal["epg", "pepg", "par"]
Bound = Literal["adaptive", "clean", "velocity", "exact"]


@dataclass(frozen=True)
class Elbo(OldDenoisingLoss):
    """A policy gradient with E, the evidence lower bound of a sample at a noise level, in place of its log-prob.

    With q = E - E_old without a gradient, the forms are `epg` -e^q A E; `pepg` -e^q (A - q) E, which keeps the policy
    near the old one; and `par` e^q (A - (E - E_old))^2 / 2, its regression.

    Choi et al. 2026, "Rethinking the Design Space of Reinforcement Learning for Diffusion Models", arXiv 2602.04663;
    constants of jaemoo-choi/rethinking-diffusion-rl. -E is the squared error of the clean latents divided by its own
    mean absolute error (`adaptive`, as in DiffusionNFT), that error alone (`clean`, t^2 l), the flow-matching loss l
    (`velocity`), or (1 - t) / (t + 1e-3) l (`exact`); divided by `scale`, for which the authors' code takes the
    guidance scale (adaptive) or its square (velocity).

    Without a `decay` the old weights are the trained weights themselves, which is right for one optimizer step per
    rollout (q is then 0, and all three forms have the gradient of -A E). For more steps `decay` keeps a copy of them;
    `{slope: 0}` keeps those that sampled the rollout.

    Raises ValueError for settings out of range.
    """

    # With q = E - E_old: `epg` -e^q A E, `pepg` -e^q (A - q) E, `par` e^q (A - q)^2 / 2.
    form: Form = "epg"
    # What -E is: the squared error of the clean latents over its own mean absolute error (`adaptive`), that error alone
    # (`clean`), the flow-matching loss l (`velocity`), or (1 - t) / (t + 1e-3) l (`exact`).
    bound: Bound = "adaptive"
    scale: Annotated[float, Field(gt=0)] = 1.0  # E is divided by this number
    # How slowly old weights follow; `null`: old weights are the trained ones, for one optimizer step per rollout.
    decay: OldDecay | None = None

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns E of the trained and of the old weights, then the penalties' distances: [B, K] each."""
        return (
            self._bound(forward_outputs.trained),
            self._bound(forward_outputs.old),
            *self.penalties(forward_outputs),
        )

    def _bound(self, at: Denoising) -> Tensor:
        if self.bound in ("adaptive", "clean"):
            return -clean_error(at, at.prediction, is_adaptive=self.bound == "adaptive") / self.scale
        error = velocity_error(at)
        if self.bound == "exact":
            sigma = at.spread(at.sigma)
            error = error * (1 - sigma) / (sigma + 1e-3)
        return -error / self.scale

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        bound, old_bound, *penalties = measures
        log_ratio = bound.detach() - old_bound  # q
        ratio = log_ratio.clamp(max=LARGEST_LOG_RATIO).exp()
        if self.form == "par":
            terms = 0.5 * ratio * (batch.advantages - (bound - old_bound)).square()
        else:
            advantages = batch.advantages - (log_ratio if self.form == "pepg" else 0.0)
            terms = -ratio * advantages * bound
        return self.penalised(terms, penalties, {"bound": bound, "ratio": ratio})
