"""Evaluations: what some weights say of a rollout now.

Maths: docs/maths/sde-sampling.md#log-probs-and-their-reduction
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from mmrl.core.data import Outputs
from mmrl.core.numerics import (
    Reduction,
    gaussian_kl,
    gaussian_log_prob,
    gaussian_log_ratio,
    group_log_softmax,
    reduce_elements,
)


class Decisions(Protocol):
    """Forward outputs of a DecisionView; every answer is [B, K], exactly 0 where the view has no entry.

    `provides` names what it knows beside log-probs, see `PROVIDED`.
    """

    provides: ClassVar[frozenset[str]]

    def log_prob(self) -> Tensor: ...
    def log_ratio(self, old: Self) -> Tensor: ...
    def kl(self, reference: Self) -> Tensor: ...
    def detach(self) -> Self: ...


@dataclass(frozen=True)
class TokenDecisions:
    """Log-probabilities of the tokens that were drawn, under the distribution they were drawn from."""

    values: Tensor  # [B, K] float32; 0 where absent
    entropy: Tensor | None = None  # [B, K]

    provides: ClassVar[frozenset[str]] = frozenset({"entropy"})

    def log_prob(self) -> Tensor:
        return self.values

    def log_ratio(self, old: "TokenDecisions") -> Tensor:
        return self.values - old.values

    def kl(self, reference: "TokenDecisions") -> Tensor:
        raise ValueError("the exact KL of tokens needs all logits; use the estimators k1, k2 or k3")

    def detach(self) -> "TokenDecisions":
        return TokenDecisions(self.values.detach(), None if self.entropy is None else self.entropy.detach())


@dataclass(frozen=True)
class GaussianDecisions:
    """Steps x' ~ N(mean, std^2): one mean for each network call, any number of draws from it.

    Log-probabilities are of the true density, reduced over the d elements of a latent by `reduction` (see
    `numerics.reduce_elements`), in float32.
    """

    mean: Tensor  # [N, ...] float32, of each network call in the view
    std: Tensor  # [N] float32, > 0
    sample: Tensor  # [E, ...] the drawn next latents, as stored
    call: Tensor  # [E] int64: index into mean
    entry: Tensor  # [B, K] int64: index into sample; -1 where the view has no entry
    reduction: Reduction
    velocity: Tensor | None = None  # [N] d mean / d velocity of each call's step, not 0; see `plans.Transition`
    step: Tensor | None = None  # [B, K] sigma - sigma_next of each entry's step; 0 where the view has no entry
    gradient: Tensor | None = None  # [E, ...] of the scores by `sample`, where a loss reads it

    provides: ClassVar[frozenset[str]] = frozenset({"exact_kl", "choice", "noise", "velocity", "step", "gradient"})

    def log_prob(self) -> Tensor:
        return self._spread(gaussian_log_prob(self.sample.float(), self._at_edges(self.mean), self._edge_std()))

    def log_ratio(self, old: "GaussianDecisions") -> Tensor:
        old_mean = self._at_edges(old.mean)
        return self._spread(
            gaussian_log_ratio(self.sample.float(), self._at_edges(self.mean), old_mean, self._edge_std())
        )

    def choice_log_ratio(self, old: "GaussianDecisions") -> Tensor:
        """log of how much likelier than under `old` each draw is to be chosen among all draws from its state.

        One is chosen with its density over the sum of the densities of all: softmax of -(sample - mean)^2 / (2 std^2).
        """
        sample, mean, old_mean = self.sample.float(), self._at_edges(self.mean), self._at_edges(old.mean)
        density = gaussian_log_prob(sample, old_mean, self._edge_std())
        shift = gaussian_log_ratio(sample, mean, old_mean, self._edge_std())
        # float64: densities differ by much where their changes are small
        before, shift = (reduce_elements(values, self.reduction).double() for values in (density, shift))
        everyone = torch.ones_like(self.call, dtype=torch.bool)
        chosen = group_log_softmax(before, self.call, everyone)
        return self._gather((group_log_softmax(chosen + shift, self.call, everyone) - chosen).to(self.mean.dtype))

    def kl(self, reference: "GaussianDecisions") -> Tensor:
        std = self.std.view(-1, *[1] * (self.mean.dim() - 1))
        per_call = reduce_elements(gaussian_kl(self.mean, reference.mean, std), self.reduction)  # [N]
        return self._gather(per_call[self.call])

    def shift_along_noise(self, old: "GaussianDecisions") -> Tensor:
        """z (mean - old mean) in the unit of the reduction, z = (sample - old mean) / std the noise that was drawn."""
        old_mean = self._at_edges(old.mean)
        noise = (self.sample.float() - old_mean) / self._edge_std()
        return self._spread(noise * (self._at_edges(self.mean) - old_mean))

    def velocity_gap(self, other: "GaussianDecisions") -> Tensor:
        """Squared distance of the velocities behind the means, a mean over the d elements whatever the reduction."""
        if self.velocity is None:
            raise ValueError("these decisions do not say how their means depend on a velocity")
        per_call = reduce_elements((self.mean - other.mean).square(), "mean") / self.velocity.square()  # [N]
        return self._gather(per_call[self.call])

    def control_gap(self, reference: "GaussianDecisions", strength: float) -> Tensor:
        """(u - strength std gradient)^2 in the unit of the reduction, u = (mean - reference mean) / std the control."""
        if self.gradient is None:
            raise ValueError("these decisions do not say the gradient of the scores by what was drawn")
        std = self._edge_std()
        control = (self._at_edges(self.mean) - self._at_edges(reference.mean)) / std
        return self._spread((control - strength * std * self.gradient).square())

    def detach(self) -> "GaussianDecisions":
        return replace(self, mean=self.mean.detach())

    def _at_edges(self, per_call: Tensor) -> Tensor:
        return per_call[self.call]

    def _edge_std(self) -> Tensor:
        return self.std[self.call].view(-1, *[1] * (self.mean.dim() - 1))

    def _spread(self, per_element: Tensor) -> Tensor:
        return self._gather(reduce_elements(per_element, self.reduction))

    def _gather(self, per_edge: Tensor) -> Tensor:
        """[E] -> [B, K]; the appended zero is what entry -1 reads."""
        return torch.cat([per_edge, per_edge.new_zeros(1)])[self.entry]


@dataclass(frozen=True)
class Denoising:
    """Predicted and true velocity at noised outputs x = (1 - sigma) * clean + sigma * noise; target = noise - clean."""

    prediction: Tensor  # [N, ...] float32
    target: Tensor  # [N, ...] float32
    noisy: Tensor  # [N, ...] float32
    sigma: Tensor  # [N]
    entry: Tensor  # [B, K] int64: index into the N entries; -1 where the view has no entry

    def velocity_gap(self, other: "Denoising") -> Tensor:
        """Squared distance of the predictions, a mean over the d elements: [B, K]."""
        return self.spread(reduce_elements((self.prediction - other.prediction).square(), "mean"))

    def detach(self) -> "Denoising":
        return replace(self, prediction=self.prediction.detach())

    def spread(self, per_entry: Tensor) -> Tensor:
        """[N] -> [B, K], 0 where the view has no entry."""
        return torch.cat([per_entry, per_entry.new_zeros(1)])[self.entry]


@dataclass(frozen=True)
class RenderedOutputs:
    """Media with a gradient to the weights, for differentiable rewards."""

    outputs: Outputs  # of the view's N entries, in its order
    sample: Tensor  # [N] int64: which sample each is of
    column: Tensor  # [N] int64: which draw of that sample
    shape: tuple[int, int]  # B, K

    def spread(self, per_entry: Tensor) -> Tensor:
        """[N] -> [B, K], 0 where the view has no entry."""
        rows = self.sample.to(per_entry.device), self.column.to(per_entry.device)
        return per_entry.new_zeros(self.shape).index_put(rows, per_entry)


ForwardOutputs = TokenDecisions | GaussianDecisions | Denoising | RenderedOutputs

# What a loss may read of decisions beside log-probs, by what the samples are made of: `exact_kl` (`kl`), `choice`
# (`choice_log_ratio`), `noise` (`shift_along_noise`), `velocity` (`velocity_gap`), `step` and `entropy` (the fields),
# `gradient` (`control_gap`; the core has it carried back from differentiable rewards).
PROVIDED: Mapping[str, frozenset[str]] = {
    "latents": GaussianDecisions.provides,
    "tokens": TokenDecisions.provides,
    "turns": TokenDecisions.provides,
}
