"""The base of losses on decisions: the view, the penalties, and the denominator of the sum.

Maths: docs/maths/group-relative-losses.md
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.data import Rollout, WeightsName
from mmrl.core.declarations import DecisionQuantity, LossDeclaration
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import Normalisation, normalised_weights
from mmrl.core.schedules import Schedule, ends_of, value_at
from mmrl.core.views import DecisionView

from .divergence import KL, REQUIRES, KLTarget, divergence


@dataclass(frozen=True)
class DecisionLoss(Checked):
    """The base of losses on decisions, with their settings; a loss adds `measure` and its formula.

    The penalty is kl_coef * KL(trained || kl_to) at the states of the rollout, with a gradient to the trained weights;
    `divergence.divergence` defines the kinds of KL. `kl_coef` may be a schedule of the iteration: a weak KL at first
    explores, a stronger one later holds what was learned (Liu et al. 2025, "OThink-MR1", arXiv 2503.16081, GRPO-D). The
    KL is then measured in every iteration, also where its weight is 0. The loss subtracts entropy_coef * entropy of
    each token's distribution (Mnih et al. 2016, arXiv 1602.01783, section 4): a policy that keeps its entropy goes on
    exploring.

    `entropy_floor`: the entropy counts only in a step whose mean entropy, the mean of -log_prob over its tokens as they
    were sampled, is below the floor. This is the switch of He et al. 2025, "Skywork Open Reasoner 1", arXiv 2505.22312
    (adaptive entropy control), whose code estimates the entropy in this way; theirs also moves the weight up and down
    by a constant from iteration to iteration, which this one does not. All tokens have the bonus, or none.

    Raises ValueError for settings out of range, and for a floor without a bonus.
    """

    # Weight of the KL penalty, or its schedule over the iterations; 0 saves the reference's network call.
    kl_coef: Annotated[float, Field(ge=0)] | Schedule = 0.0
    # The KL of a penalty: `exact`, the Gaussian KL of each step, or `velocity`, the squared distance of the velocities
    # (neither for tokens); or an estimator, `k1`, `k2`, `k3`, or `low_var` (`k3`, at most 10), weaker on latents.
    kl: KL = "exact"
    kl_to: KLTarget = "reference"  # the weights that the KL is measured to; `averaged` needs `averaging`
    # Weight of the entropy of each token's distribution, which is rewarded; not for latents, whose std fixes it.
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    # The entropy is rewarded only in a step whose mean entropy in nats is below this; `null`: in every step.
    entropy_floor: Annotated[float, Field(gt=0)] | None = None
    # What counts alike: each decision, sample or group; `constant` divides each sample's sum by a number.
    normalise: Normalisation = "sample"
    # The divisor of each sample's sum under `normalise: constant` (Dr. GRPO's longest answer).
    constant: Annotated[float, Field(gt=0)] = 1.0

    kind: ClassVar[Literal["decisions", "denoising", "outputs"]] = "decisions"
    scope: ClassVar[Scope] = "decision"

    def __post_init__(self) -> None:
        super().__post_init__()
        start, end = ends_of(self.kl_coef)
        if min(start, end) < 0:
            raise ValueError(f"kl_coef must start and end at 0 or above, got {start:g} and {end:g}")
        if self.entropy_floor is not None and self.entropy_coef == 0:
            raise ValueError("entropy_floor says when entropy_coef counts, which is 0; set it above 0")

    @property
    def has_kl(self) -> bool:
        """Whether the KL has a weight in some iteration, so that all iterations measure it."""
        return max(ends_of(self.kl_coef)) > 0

    @property
    def needs(self) -> frozenset[WeightsName]:
        return frozenset({self.kl_to} if self.has_kl else set())

    @property
    def declaration(self) -> LossDeclaration:
        none: frozenset[DecisionQuantity] = frozenset()
        of_kl = REQUIRES.get(self.kl, none) if self.has_kl else none
        of_entropy: frozenset[DecisionQuantity] = frozenset({"entropy"}) if self.entropy_coef > 0 else none
        has_floor = self.entropy_floor is not None
        return LossDeclaration(requires=of_kl | of_entropy, requires_mean_entropy=has_floor)

    def old_decay(self, iteration: int) -> float | None:
        """Returns None: the old weights are those that sampled the rollout."""
        return None

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[DecisionView]:
        """Returns one view for each block, with every network call behind the samples `rows` once."""
        calls = [torch.unique(block.call[rows]) for block in rollout.blocks]
        return [DecisionView(numbers[numbers >= 0], block) for block, numbers in enumerate(calls)]

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        return normalised_weights(batch.weight, batch.group, self.normalise, self.constant)

    def divergence(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the KL and the entropy that `penalised` adds, where their weights are above 0.

        Each is [B, K] and differentiable. Raises ValueError for the exact KL of tokens, and where the forward outputs
        hold no entropy.
        """
        added = []
        if self.has_kl:
            added.append(divergence(forward_outputs.trained, getattr(forward_outputs, self.kl_to), self.kl))
        if self.entropy_coef > 0:
            if forward_outputs.trained.entropy is None:
                raise ValueError(
                    "entropy_coef needs the entropy of each decision, which the forward outputs do not hold"
                )
            added.append(forward_outputs.trained.entropy)
        return tuple(added)

    def penalised(
        self, terms: Tensor, divergence: tuple[Tensor, ...], batch: LossBatch, metrics: Mapping[str, Tensor]
    ) -> LossTerms:
        """Returns the terms [B, K] plus the penalties of `divergence`.

        Adds the metrics `kl`, where there is a KL, `kl_coef`, where that changes over the run, and `entropy_bonus`,
        1 or 0, where there is a floor of the entropy.
        Raises ValueError for a floor without the mean entropy of the batch.
        """
        left = list(divergence)
        if self.has_kl:
            kl, weight = left.pop(0), value_at(self.kl_coef, batch.iteration)
            terms, metrics = terms + weight * kl, {**metrics, "kl": kl}
            if isinstance(self.kl_coef, Schedule):
                metrics = {**metrics, "kl_coef": torch.full_like(kl, weight)}
        if self.entropy_coef > 0:
            is_on = self._has_bonus(batch)
            if self.entropy_floor is not None:
                metrics = {**metrics, "entropy_bonus": is_on.expand_as(terms)}
            terms = terms - is_on * self.entropy_coef * left.pop(0)
        return LossTerms(terms, {name: values.detach() for name, values in metrics.items()})

    def _has_bonus(self, batch: LossBatch) -> Tensor:
        """Returns 1 where the entropy is rewarded in this step, else 0: []."""
        if self.entropy_floor is None:
            return torch.ones((), device=batch.weight.device)
        if batch.mean_entropy is None:
            raise ValueError("entropy_floor needs the mean entropy of the step, which the batch does not hold")
        return (batch.mean_entropy < self.entropy_floor).to(torch.float32)
