"""Forward outputs: what some weights give for a view of a rollout now, such as log-probs and predictions.

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
    """The forward outputs of a DecisionView.

    All results are [B, K], in float32, exactly 0 where the view has no entry.
    """

    provides: ClassVar[frozenset[str]]  # quantities that it has beside log-probs, see `PROVIDED`

    def log_prob(self) -> Tensor:
        """Returns the log-probs [B, K] of the decisions."""
        ...

    def log_ratio(self, old: Self) -> Tensor:
        """Returns log p - log p_old [B, K]."""
        ...

    def kl(self, reference: Self) -> Tensor:
        """Returns the exact KL(p || p_reference) [B, K] of each decision. Raises ValueError where it is unknown."""
        ...

    def detach(self) -> Self:
        """Returns the same values without a graph."""
        ...


@dataclass(frozen=True)
class TokenDecisions:
    """The log-probs of sampled tokens, each under the distribution that it was sampled from."""

    values: Tensor  # [B, K] float32, nats; 0 where the view has no entry
    entropy: Tensor | None = None  # [B, K] nats, of each distribution; None: unknown

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
    """Random denoising steps x' ~ N(mean, std^2): N network calls give a mean each, E edges sample from these means.

    Log-probs are those of the true density, reduced over the d elements of a latent by `reduction` (see
    `numerics.reduce_elements`), in float32.
    """

    mean: Tensor  # [N, ...] float32, of each network call of the view
    std: Tensor  # [N] float32, above 0
    sample: Tensor  # [E, ...] the sampled next latents, in the precision that they are stored in
    call: Tensor  # [E] int64: index into mean
    entry: Tensor  # [B, K] int64: index into sample; -1 where the view has no entry
    reduction: Reduction
    velocity: Tensor | None = None  # [N] d mean / d velocity of each call's step, not 0; see `plans.flow.Transition`
    step: Tensor | None = None  # [B, K] sigma - sigma_next of each entry's step; 0 where the view has no entry
    gradient: Tensor | None = None  # [E, ...] of the scores with respect to `sample`; None: no loss requires it

    provides: ClassVar[frozenset[str]] = frozenset({"exact_kl", "choice", "noise", "velocity", "step", "gradient"})

    def log_prob(self) -> Tensor:
        return self._spread(gaussian_log_prob(self.sample.float(), self._at_edges(self.mean), self._edge_std()))

    def log_ratio(self, old: "GaussianDecisions") -> Tensor:
        old_mean = self._at_edges(old.mean)
        return self._spread(
            gaussian_log_ratio(self.sample.float(), self._at_edges(self.mean), old_mean, self._edge_std())
        )

    def choice_log_ratio(self, old: "GaussianDecisions") -> Tensor:
        """Returns the log-ratio [B, K] to `old` of the probability of each next latent among all those of its state.

        That probability is a density over the sum of the densities: softmax of -(sample - mean)^2 / (2 std^2).
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
        """Returns the exact KL [B, K] of each step, of two Gaussians of the same std."""
        std = self.std.view(-1, *[1] * (self.mean.dim() - 1))
        per_call = reduce_elements(gaussian_kl(self.mean, reference.mean, std), self.reduction)  # [N]
        return self._gather(per_call[self.call])

    def shift_along_noise(self, old: "GaussianDecisions") -> Tensor:
        """Returns z (mean - old mean) [B, K], reduced over elements; z = (sample - old mean) / std is the noise."""
        old_mean = self._at_edges(old.mean)
        noise = (self.sample.float() - old_mean) / self._edge_std()
        return self._spread(noise * (self._at_edges(self.mean) - old_mean))

    def velocity_gap(self, other: "GaussianDecisions") -> Tensor:
        """Returns the squared distance [B, K] of the velocities behind the means, always a mean over the d elements."""
        if self.velocity is None:
            raise ValueError("these decisions do not hold the derivative of their means with respect to the velocity")
        per_call = reduce_elements((self.mean - other.mean).square(), "mean") / self.velocity.square()  # [N]
        return self._gather(per_call[self.call])

    def control_gap(self, reference: "GaussianDecisions", strength: float) -> Tensor:
        """Returns (u - strength std gradient)^2 [B, K], reduced over elements; u = (mean - reference mean) / std."""
        if self.gradient is None:
            raise ValueError("these decisions do not hold the gradient of the scores with respect to the next latents")
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
        """Returns values [E] as [B, K]; the appended zero is the value of entries -1."""
        return torch.cat([per_edge, per_edge.new_zeros(1)])[self.entry]


@dataclass(frozen=True)
class Denoising:
    """Predicted and true velocities at noised outputs x = (1 - sigma) * clean + sigma * noise; true: noise - clean."""

    prediction: Tensor  # [N, ...] float32
    target: Tensor  # [N, ...] float32
    noisy: Tensor  # [N, ...] float32
    sigma: Tensor  # [N] in (0, 1)
    entry: Tensor  # [B, K] int64: index into the N entries; -1 where the view has no entry

    def velocity_gap(self, other: "Denoising") -> Tensor:
        """Returns the squared distance [B, K] of the predictions, a mean over the d elements."""
        return self.spread(reduce_elements((self.prediction - other.prediction).square(), "mean"))

    def detach(self) -> "Denoising":
        """Returns the same values without a graph."""
        return replace(self, prediction=self.prediction.detach())

    def spread(self, per_entry: Tensor) -> Tensor:
        """Returns values [N] of the entries as [B, K]; 0 where the view has no entry."""
        return torch.cat([per_entry, per_entry.new_zeros(1)])[self.entry]


@dataclass(frozen=True)
class RenderedOutputs:
    """Media with a graph to the weights, for differentiable rewards."""

    outputs: Outputs  # of the view's N entries, in the view's order
    sample: Tensor  # [N] int64: the sample of each entry
    column: Tensor  # [N] int64: the noise sample of each entry
    shape: tuple[int, int]  # B, K

    def spread(self, per_entry: Tensor) -> Tensor:
        """Returns values [N] of the entries as [B, K]; 0 where the view has no entry."""
        rows = self.sample.to(per_entry.device), self.column.to(per_entry.device)
        return per_entry.new_zeros(self.shape).index_put(rows, per_entry)


ForwardOutputs = TokenDecisions | GaussianDecisions | Denoising | RenderedOutputs

# The quantities of decisions that a loss may require beside log-probs, by the kind of the samples: `exact_kl` (`kl`),
# `choice` (`choice_log_ratio`), `noise` (`shift_along_noise`), `velocity` (`velocity_gap`), `step` and `entropy` (the
# fields), `gradient` (`control_gap`; the core has it carried back from differentiable rewards).
PROVIDED: Mapping[str, frozenset[str]] = {
    "latents": GaussianDecisions.provides,
    "tokens": TokenDecisions.provides,
    "turns": TokenDecisions.provides,
}
