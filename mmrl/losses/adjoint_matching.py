"""Adjoint matching: the drift regresses on the gradient of the reward, carried back along the reference.

Maths: docs/maths/reward-gradients.md#adjoint-matching
"""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights
from mmrl.core.data import WeightsName
from mmrl.core.declarations import LossDeclaration

from .base.decisions import DecisionLoss


@dataclass(frozen=True)
class AdjointMatching(DecisionLoss):
    """||u - strength * std * g||^2 of each random step, with u = (mean - reference mean) / std.

    Domingo-Enrich et al. 2024, "Adjoint Matching: Fine-tuning Flow and Diffusion Generative Models with Memoryless
    Stochastic Optimal Control", arXiv 2409.08861, section 5. u is the control of the step, and -strength * g the lean
    adjoint at the latents that the step sampled: g is the gradient of the reward there, carried back from the sample
    through the steps of the reference (`Differentiable.differentiate`); no gradient passes through the target. Both
    belong to the sampler's own discrete chain: its law is tilted by exp(strength * reward) exactly where the chain is
    memoryless, so take the sampler `memoryless`. The paper takes the adjoint at the state where a step begins. That
    differs by the length of one step, and completely at the first step: there the paper's adjoint is 0, and the target
    of this loss is not.

    The squares are reduced over a latent's elements by the policy's `reduction`, so `strength` does not depend on it.
    `strength` is the paper's reward multiplier lambda; the default is that of the authors' code. That code trains 4 of
    50 steps (the sampler's `train_fraction`) and leaves out samples with a loss above a running quantile; this loss
    leaves none out. The rewards that count must be differentiable. Raises ValueError for settings out of range.
    """

    # The weight of a unit of reward against leaving the reference; 0 pulls back to the reference.
    strength: Annotated[float, Field(ge=0)] = 100.0

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {"reference"}

    @property
    def declaration(self) -> LossDeclaration:
        inner = super().declaration
        return replace(inner, requires=inner.requires | {"gradient"})

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the squared distance of the control to its target, then the penalties: [B, K] each."""
        gap = forward_outputs.trained.control_gap(forward_outputs.reference, self.strength)
        return (gap, *self.divergence(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        gap, *divergence = measures
        return self.penalised(gap, tuple(divergence), batch, {"control_gap": gap})
