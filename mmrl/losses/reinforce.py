"""REINFORCE: the plain policy gradient, for tokens and for denoising steps."""

from dataclasses import dataclass

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights

from .base.decisions import DecisionLoss


@dataclass(frozen=True)
class Reinforce(DecisionLoss):
    """The term -A log_prob of each decision.

    Williams 1992, "Simple statistical gradient-following algorithms", section 4. The gradient is right for one
    optimizer step per rollout; nothing corrects for older samples. Where GRPO's ratio is 1, both losses have the same
    gradient.

    Raises ValueError for settings out of range.
    """

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the log-prob, then the penalties if there are any: [B, K] each."""
        return (forward_outputs.trained.log_prob(), *self.divergence(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        log_prob, *divergence = measures
        return self.penalised(-batch.advantages * log_prob, tuple(divergence), batch, {"log_prob": log_prob})
