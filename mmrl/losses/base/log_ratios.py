"""Bases of losses on log-ratios: the compared log-probs, the anchor, and where the penalties are added."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights
from mmrl.core.data import WeightsName
from mmrl.core.declarations import LossDeclaration

from .decisions import DecisionLoss

Anchor = Literal["old", "reference", "averaged"]


@dataclass(frozen=True)
class LogRatioLoss(DecisionLoss):
    """A loss on log-ratios of the trained weights to other weights; a loss adds `compare` and `terms`."""

    @abstractmethod
    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns what `terms` takes, [B, K] each: the log-ratio first, then what a loss adds."""

    @abstractmethod
    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the terms for the results of `compare`, and metrics: [B, K] each, or [B] for whole samples."""

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the results of `compare`, then the penalties if there are any: [B, K] each."""
        return (*self.compare(forward_outputs), *self.divergence(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        own = len(measures) - self.has_kl - (self.entropy_coef > 0)
        terms, metrics = self.terms(measures[:own], batch)
        wide = {name: _over_decisions(values, batch.weight) for name, values in metrics.items()}
        size = {"log_ratio_size": measures[0].abs()}
        return self.penalised(_over_decisions(terms, batch.weight), measures[own:], batch, {**size, **wide})


@dataclass(frozen=True)
class AnchoredLoss(LogRatioLoss):
    """A loss on log trained - log anchor; a loss adds `terms`.

    The loss keeps the policy near the anchor, whichever policy made the samples: no importance ratio to the anchor
    corrects an expectation.

    Raises ValueError for settings out of range.
    """

    # The weights whose log-probs the trained ones are compared with: `old`, `reference`, or `averaged`.
    anchor: Anchor = "old"

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {self.anchor}

    @property
    def declaration(self) -> LossDeclaration:
        return replace(super().declaration, requires_behaviour=False)

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        return (forward_outputs.trained.log_ratio(getattr(forward_outputs, self.anchor)),)


def _over_decisions(values: Tensor, like: Tensor) -> Tensor:
    """Returns values [B, K] as they are, and values [B] of samples repeated over the decisions: [B, K]."""
    return values if values.dim() == 2 else values[:, None].expand_as(like)
