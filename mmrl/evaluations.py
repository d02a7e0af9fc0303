"""Evaluations: what some weights say of a rollout now."""

from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from mmrl.data import Outputs
from mmrl.numerics import Reduction, gaussian_kl, gaussian_log_prob, gaussian_log_ratio, reduce_elements


class Decisions(Protocol):
    """An evaluation of a DecisionView; every answer is [B, K], exactly 0 where the view has no entry."""

    @property
    def has_exact_kl(self) -> bool: ...
    def log_prob(self) -> Tensor: ...
    def log_ratio(self, old: Self) -> Tensor: ...
    def kl(self, reference: Self) -> Tensor: ...
    def detach(self) -> Self: ...


@dataclass(frozen=True)
class TokenDecisions:
    """Log-probabilities of the tokens that were drawn, under the distribution they were drawn from."""

    values: Tensor  # [B, K] float32; 0 where absent
    entropy: Tensor | None = None  # [B, K]

    @property
    def has_exact_kl(self) -> bool:
        return False

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

    @property
    def has_exact_kl(self) -> bool:
        return True

    def log_prob(self) -> Tensor:
        return self._spread(gaussian_log_prob(self.sample.float(), self._at_edges(self.mean), self._edge_std()))

    def log_ratio(self, old: "GaussianDecisions") -> Tensor:
        old_mean = self._at_edges(old.mean)
        return self._spread(
            gaussian_log_ratio(self.sample.float(), self._at_edges(self.mean), old_mean, self._edge_std())
        )

    def kl(self, reference: "GaussianDecisions") -> Tensor:
        std = self.std.view(-1, *[1] * (self.mean.dim() - 1))
        per_call = reduce_elements(gaussian_kl(self.mean, reference.mean, std), self.reduction)  # [N]
        return self._gather(per_call[self.call])

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

    def spread(self, per_entry: Tensor) -> Tensor:
        """[N] -> [B, K], 0 where the view has no entry."""
        return torch.cat([per_entry, per_entry.new_zeros(1)])[self.entry]


@dataclass(frozen=True)
class RenderedOutputs:
    """Media with a gradient to the weights, for differentiable rewards."""

    outputs: Outputs  # of the view's samples, in its order
    sample: Tensor  # [N] int64


Evaluation = TokenDecisions | GaussianDecisions | Denoising | RenderedOutputs
