"""Policy gradients with the evidence lower bound in place of log-probs: EPG, PEPG and PAR.

Maths: docs/maths/denoising-losses.md#elbo-policy-gradients
"""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights
from mmrl.core.forward_outputs import Denoising
from mmrl.core.numerics import LARGEST_LOG_RATIO

from .base.denoising import clean_error, velocity_error
from .base.old_decay import OldDecay, OldDenoisingLoss
from .base.settings import check_above, check_one_of

Form = Literal["epg", "pepg", "par"]
Bound = Literal["adaptive", "clean", "velocity", "exact"]


@dataclass(frozen=True)
class Elbo(OldDenoisingLoss):
    """With E the bound of a sample at a noise level and q = E - E_old without a gradient: `epg` -e^q A E; `pepg`
    -e^q (A - q) E, which holds the policy to the old one; `par` e^q (A - (E - E_old))^2 / 2, its regression.

    Choi et al. 2026, "Rethinking the Design Space of Reinforcement Learning for Diffusion Models", arXiv 2602.04663;
    constants of jaemoo-choi/rethinking-diffusion-rl. E is minus: the squared error of the clean latents divided by its
    own mean absolute error (`adaptive`, as DiffusionNFT's), that error alone (`clean`, t^2 l), the flow-matching loss l
    (`velocity`), or (1 - t) / (t + 1e-3) l (`exact`); divided by `scale`, for which their code takes the guidance scale
    (adaptive) or its square (velocity).

    Old are the weights themselves, which is right for one optimizer step per rollout (q is then 0, and all three have
    the gradient of -A E); for more `decay` keeps a copy of them, `{slope: 0}` those that drew the rollout.

    Raises ValueError for settings out of range.
    """

    form: Form = "epg"
    bound: Bound = "adaptive"
    scale: float = 1.0
    decay: OldDecay | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("scale", self.scale)
        check_one_of("form", self.form, get_args(Form))
        check_one_of("bound", self.bound, get_args(Bound))

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """E of the trained and of the old weights, and the squared distances of the penalties: [B, K] each."""
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
            worth = batch.advantages - (log_ratio if self.form == "pepg" else 0.0)
            terms = -ratio * worth * bound
        return self.penalised(terms, penalties, {"bound": bound, "ratio": ratio})
