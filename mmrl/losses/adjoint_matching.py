"""Adjoint matching: the drift is regressed onto the gradient of the reward, carried back along the reference.

Maths: docs/maths/reward-gradients.md#adjoint-matching
"""

from dataclasses import dataclass

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights
from mmrl.core.data import WeightsName

from .base.decisions import DecisionLoss
from .base.settings import check_at_least


@dataclass(frozen=True)
class AdjointMatching(DecisionLoss):
    """||u - strength * std * g||^2 of each random step, with u = (mean - reference mean) / std.

    Domingo-Enrich et al. 2024, "Adjoint Matching: Fine-tuning Flow and Diffusion Generative Models with Memoryless
    Stochastic Optimal Control", arXiv 2409.08861, section 5. u is the control of the step, and -strength * g the lean
    adjoint at the latents that it drew: g is the gradient of the reward there, carried back from the sample through the
    steps of the reference (`_rendering.carry_back`); no gradient passes through the target. Both are of the sampler's
    own discrete chain: its law is tilted by exp(strength * reward) exactly where the chain is memoryless, so take the
    sampler `memoryless`. The paper takes the adjoint at the state that a step begins at, which differs by the length of
    one step, and at the first step by all: there its adjoint is 0 and the target of this one is not.

    The squares are reduced over a latent's elements by the policy's `reduction`, so `strength` does not depend on it.
    `strength` is the paper's reward multiplier lambda: 0 pulls back to the reference. The paper's code trains 4 of 50
    steps (the sampler's `train_fraction`) and leaves out samples with a loss above a running quantile, which this does
    not. The rewards that count must be differentiable. Raises ValueError for settings out of range.
    """

    strength: float = 100.0  # the authors' code; lambda, in 1 / units of the reward

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("strength", self.strength)

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {"reference"}

    @property
    def requires(self) -> frozenset[str]:
        return super().requires | {"gradient"}

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """The squared distance of the control to its target, and what `divergence` measures: [B, K] each."""
        gap = forward_outputs.trained.control_gap(forward_outputs.reference, self.strength)
        return (gap, *self.divergence(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        gap, *divergence = measures
        return self.penalised(gap, tuple(divergence), {"control_gap": gap})
