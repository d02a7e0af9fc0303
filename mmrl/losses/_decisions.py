"""What losses on decisions share: the view, the penalty for leaving the reference, and what the sum is divided by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from mmrl.contracts import Evaluations, LossBatch, LossTerms, Scope
from mmrl.data import Rollout, WeightsName
from mmrl.keys import GroupKey
from mmrl.numerics import KLEstimator, Normalisation, kl_estimate, normalised_weights
from mmrl.views import DecisionView

KL = Literal["exact", "k1", "k2", "k3"]


@dataclass(frozen=True)
class DecisionLoss:
    """Settings and steps that every loss on decisions has; a loss adds `measure` and its formula.

    The penalty is kl_coef * KL(trained || reference) at the states of the rollout, with a gradient to the trained
    weights. `exact` is the Gaussian KL of each denoising step (in the unit of the decisions' reduction; tokens have
    none). The estimators see only the choice that was made:
      k1, k2: on-policy, the mean gradient is that of the KL. The own gradient of k1 has mean 0 and would hold nothing
          back, so k1 is reported and k2 differentiated (Liu et al. 2025, arXiv 2510.01555).
      k3: never negative, as in GRPO (Shao et al. 2024, arXiv 2402.03300, eq. 4); on-policy, its mean gradient is that
          of the reverse direction, KL(reference || trained).
    On latents take `exact`. An estimator reads the log-ratio in the unit of the reduction, and squares that unit: with
    `mean` its gradient is d times smaller than the exact one's, with `rms` sqrt(d) times, with `sum` the same.

    Raises ValueError for settings out of range.
    """

    kl_coef: float = 0.0
    kl: KL = "exact"
    normalise: Normalisation = "sample"  # what counts alike, see `numerics.normalised_weights`; GRPO averages samples
    constant: float = 1.0  # divides a sample's sum when `normalise` is "constant" (Dr. GRPO's longest answer)

    kind: ClassVar[Literal["decisions", "denoising", "outputs"]] = "decisions"
    scope: ClassVar[Scope] = "decision"

    def __post_init__(self) -> None:
        if self.kl_coef < 0:
            raise ValueError(f"kl_coef must be at least 0, got {self.kl_coef}")
        if self.constant <= 0:
            raise ValueError(f"constant must be above 0, got {self.constant}")
        for name, allowed in (("kl", get_args(KL)), ("normalise", get_args(Normalisation))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    @property
    def needs(self) -> frozenset[WeightsName]:
        return frozenset({"reference"} if self.kl_coef > 0 else set())

    def old_decay(self, iteration: int) -> float | None:
        """Old are the weights that drew the rollout."""
        return None

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[DecisionView]:
        """Every network call behind the samples `rows` once, one view for each block."""
        calls = [torch.unique(block.call[rows]) for block in rollout.blocks]
        return [DecisionView(numbers[numbers >= 0], block) for block, numbers in enumerate(calls)]

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        return normalised_weights(batch.weight, batch.group, self.normalise, self.constant)

    def divergence(self, evaluations: Evaluations) -> tuple[Tensor, ...]:
        """KL(trained || reference) [B, K], differentiable; nothing where it is not asked for.

        Raises ValueError for the exact KL of tokens.
        """
        if self.kl_coef == 0:
            return ()
        if self.kl == "exact":
            return (evaluations.trained.kl(evaluations.reference),)
        return (_estimated_kl(evaluations.trained.log_ratio(evaluations.reference), self.kl),)

    def penalised(self, terms: Tensor, divergence: tuple[Tensor, ...], metrics: Mapping[str, Tensor]) -> LossTerms:
        """The loss's terms [B, K] plus the penalty, and its metrics plus `kl`, both where it was measured."""
        for kl in divergence:
            terms, metrics = terms + self.kl_coef * kl, {**metrics, "kl": kl}
        return LossTerms(terms, {name: values.detach() for name, values in metrics.items()})


def _estimated_kl(log_ratio: Tensor, estimator: KLEstimator) -> Tensor:
    value = kl_estimate(log_ratio, estimator)
    if estimator != "k1":
        return value
    differentiated = kl_estimate(log_ratio, "k2")
    return value.detach() + (differentiated - differentiated.detach())
