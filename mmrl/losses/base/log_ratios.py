"""What losses on log-ratios share: what is compared, with whose log-probs, and where the penalties go."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights
from mmrl.core.data import WeightsName

from .decisions import DecisionLoss
from .settings import check_one_of

Anchor = Literal["old", "reference", "averaged"]


@dataclass(frozen=True)
class LogRatioLoss(DecisionLoss):
    """A loss on how the log-probs of the trained weights compare with others; adds `compare` and `terms`."""

    @abstractmethod
    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """What the terms are made of, [B, K] each: the log-ratio, and what a loss adds to it."""

    @abstractmethod
    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The terms of what was compared, and metrics of their own: [B, K] each, or [B] where they are of samples."""

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """What `compare` says, and the penalties if there are any: [B, K] each."""
        return (*self.compare(forward_outputs), *self.divergence(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        own = len(measures) - (self.kl_coef > 0) - (self.entropy_coef > 0)
        terms, metrics = self.terms(measures[:own], batch)
        wide = {name: _over_decisions(values, batch.weight) for name, values in metrics.items()}
        size = {"log_ratio_size": measures[0].abs()}
        return self.penalised(_over_decisions(terms, batch.weight), measures[own:], {**size, **wide})


@dataclass(frozen=True)
class AnchoredLoss(LogRatioLoss):
    """A loss on log trained - log anchor; adds `terms`.

    The anchor is what the policy is held near, whoever drew the samples: no expectation is corrected by a ratio to it.

    Raises ValueError for settings out of range.
    """

    requires_behaviour: ClassVar[bool] = False

    anchor: Anchor = "old"  # whose log-probs those of the trained weights are compared with

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("anchor", self.anchor, get_args(Anchor))

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {self.anchor}

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        return (forward_outputs.trained.log_ratio(getattr(forward_outputs, self.anchor)),)


def _over_decisions(values: Tensor, like: Tensor) -> Tensor:
    """[B, K] from [B, K], or from [B]: what holds for a sample, at each of its decisions."""
    return values if values.dim() == 2 else values[:, None].expand_as(like)
