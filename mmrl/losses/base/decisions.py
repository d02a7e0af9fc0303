"""What losses on decisions share: the view, the penalty for leaving the reference, and what the sum is divided by.

Maths: docs/maths/group-relative-losses.md
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.data import Rollout, WeightsName
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import Normalisation, normalised_weights
from mmrl.core.views import DecisionView

from .divergence import KL, REQUIRES, KLTarget, divergence
from .settings import check_above, check_at_least, check_one_of


@dataclass(frozen=True)
class DecisionLoss:
    """Settings and steps that every loss on decisions has; a loss adds `measure` and its formula.

    The penalty is kl_coef * KL(trained || kl_to) at the states of the rollout, with a gradient to the trained weights;
    see `_divergence.divergence` for its kinds. entropy_coef * entropy of each token's distribution is taken off the
    loss (Mnih et al. 2016, arXiv 1602.01783, section 4): a policy that keeps it goes on exploring.

    Raises ValueError for settings out of range.
    """

    kl_coef: float = 0.0
    kl: KL = "exact"
    kl_to: KLTarget = "reference"  # or the averaged weights, which need `averaging`
    entropy_coef: float = 0.0  # tokens only: a denoising step's entropy is fixed by its std
    normalise: Normalisation = "sample"  # what counts alike, see `numerics.normalised_weights`; GRPO averages samples
    constant: float = 1.0  # divides a sample's sum when `normalise` is "constant" (Dr. GRPO's longest answer)

    kind: ClassVar[Literal["decisions", "denoising", "outputs"]] = "decisions"
    scope: ClassVar[Scope] = "decision"

    def __post_init__(self) -> None:
        for name in ("kl_coef", "entropy_coef"):
            check_at_least(name, getattr(self, name))
        check_above("constant", self.constant)
        options = (("kl", get_args(KL)), ("kl_to", get_args(KLTarget)), ("normalise", get_args(Normalisation)))
        for name, allowed in options:
            check_one_of(name, getattr(self, name), allowed)

    @property
    def needs(self) -> frozenset[WeightsName]:
        return frozenset({self.kl_to} if self.kl_coef > 0 else set())

    @property
    def requires(self) -> frozenset[str]:
        """What it must be told of decisions beside their log-probs, see `evaluations.PROVIDED`."""
        of_kl = REQUIRES.get(self.kl, frozenset()) if self.kl_coef > 0 else frozenset()
        return of_kl | ({"entropy"} if self.entropy_coef > 0 else set())

    def old_decay(self, iteration: int) -> float | None:
        """Old are the weights that drew the rollout."""
        return None

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[DecisionView]:
        """Every network call behind the samples `rows` once, one view for each block."""
        calls = [torch.unique(block.call[rows]) for block in rollout.blocks]
        return [DecisionView(numbers[numbers >= 0], block) for block, numbers in enumerate(calls)]

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        return normalised_weights(batch.weight, batch.group, self.normalise, self.constant)

    def divergence(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """What `penalised` adds, [B, K] each and differentiable: the KL and the entropy, where they count.

        Raises ValueError for the exact KL of tokens, and for an entropy that the policy does not say.
        """
        added = []
        if self.kl_coef > 0:
            added.append(divergence(forward_outputs.trained, getattr(forward_outputs, self.kl_to), self.kl))
        if self.entropy_coef > 0:
            if forward_outputs.trained.entropy is None:
                raise ValueError("entropy_coef needs the entropy of each decision, which the policy does not say")
            added.append(forward_outputs.trained.entropy)
        return tuple(added)

    def penalised(self, terms: Tensor, divergence: tuple[Tensor, ...], metrics: Mapping[str, Tensor]) -> LossTerms:
        """The loss's terms [B, K] plus what `divergence` measured, and its metrics plus `kl` where it was measured."""
        left = list(divergence)
        if self.kl_coef > 0:
            kl = left.pop(0)
            terms, metrics = terms + self.kl_coef * kl, {**metrics, "kl": kl}
        if self.entropy_coef > 0:
            terms = terms - self.entropy_coef * left.pop(0)
        return LossTerms(terms, {name: values.detach() for name, values in metrics.items()})
