"""What losses on the forward process share: noised copies of the samples, squared errors, penalties in velocities.

Maths: docs/maths/denoising-losses.md
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError, LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.data import Rollout, WeightsName
from mmrl.core.forward_outputs import Denoising
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import check_count, normalised_weights, reduce_elements
from mmrl.core.views import DenoisingView

from .settings import check_above, check_at_least, check_one_of

Sigmas = Literal["uniform", "stratified", "logit_normal", "grid"]
Sharing = Literal["sample", "group"]
Kind = Literal["decisions", "denoising", "outputs"]


@dataclass(frozen=True)
class DenoisingLoss:
    """Settings and steps that every loss on the forward process has; a loss adds `measure` and its formula.

    Each sample is noised again in `draws` ways for each optimizer step, x = (1 - sigma) clean + sigma noise. `sigmas`
    says how its noise levels are drawn: `uniform`; `stratified`, one in each of the group's G * draws strata;
    `logit_normal`, the logistic of a standard normal number (Esser et al. 2024, arXiv 2403.03206, section 3.1); `grid`,
    from the sampler's own levels inside `sigma_range`, one in each of `draws` parts of them. Outputs that were given
    have no sampler: theirs are the levels of the network's timesteps, as in its training, where the family has such
    (not a flow's). `shift` s moves those of the first three to s sigma / (1 + (s - 1) sigma). A pair or a group that is
    compared at one level, under one noise, has `levels` and `noise` set to `group`.

    Penalties: `reference_weight` and `averaged_weight` times the mean squared distance of the velocity to that of the
    reference and of the averaged weights (their network calls are saved at 0).

    Raises ValueError for settings out of range.
    """

    draws: int = 1
    sigmas: Sigmas = "uniform"
    sigma_range: tuple[float, float] = (0.0, 1.0)
    shift: float = 1.0
    levels: Sharing = "sample"  # who shares the noise level of a draw
    noise: Sharing = "sample"  # who shares the noise of a draw
    reference_weight: float = 0.0
    averaged_weight: float = 0.0

    def __post_init__(self) -> None:
        check_count("draws", self.draws)
        check_above("shift", self.shift)
        for name in ("reference_weight", "averaged_weight"):
            check_at_least(name, getattr(self, name))
        low, high = self.sigma_range
        if not 0 <= low < high <= 1:
            raise ValueError(f"sigma_range must be two ascending noise levels in [0, 1], got {low} and {high}")
        for name, allowed in (("sigmas", Sigmas), ("levels", Sharing), ("noise", Sharing)):
            check_one_of(name, getattr(self, name), get_args(allowed))

    @property
    def kind(self) -> Kind:
        return "denoising"

    @property
    def scope(self) -> Scope:
        return "decision"

    @property
    def needs(self) -> frozenset[WeightsName]:
        return frozenset(self._penalties())

    def _penalties(self) -> dict[WeightsName, float]:
        """The weights that a penalty holds the trained ones to, and how strongly."""
        weights: dict[WeightsName, float] = {"reference": self.reference_weight, "averaged": self.averaged_weight}
        return {which: weight for which, weight in weights.items() if weight > 0}

    @property
    def requires_levels(self) -> bool:
        """Whether it needs a rollout that says its noise levels."""
        return self.kind == "denoising" and self.sigmas == "grid"

    def old_decay(self, iteration: int) -> float | None:
        """Old are the weights that drew the rollout."""
        return None

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[DenoisingView]:
        """`draws` noised copies of each sample, by the step's key, the draw of the prompt and the place in it."""
        sigma, seeds = torch.empty(rollout.num_samples, self.draws), {}
        for draw in rollout.prompt_index[rows].unique().tolist():
            members = (rollout.prompt_index == draw).nonzero().squeeze(1)
            sigma[members] = self._sigma(key.seed_for("sigma", draw), len(members), rollout.levels)
            for member, row in enumerate(members.tolist()):
                sharing = (draw, member) if self.noise == "sample" else (draw,)
                seeds[row] = [key.seed_for("noise", *sharing, column) for column in range(self.draws)]
        return [
            DenoisingView(
                sample=rows.repeat_interleave(self.draws),
                noise_sample=torch.arange(self.draws).repeat(len(rows)),
                sigma=sigma[rows].flatten(),
                noise_seed=tuple(seed for row in rows.tolist() for seed in seeds[row]),
                num_noise_samples=self.draws,
            )
        ]

    def _sigma(self, seed: int, num_members: int, grid: Sequence[float]) -> Tensor:
        """Noise levels [G, draws] of the samples of one draw."""
        generator = torch.Generator().manual_seed(seed)
        rows = 1 if self.levels == "group" else num_members
        size = rows * self.draws
        place = torch.rand(size, generator=generator)
        if self.sigmas == "stratified":
            place = (torch.randperm(size, generator=generator) + place) / size
        place = place.view(rows, self.draws)
        sigma = self._on_grid(place, grid) if self.sigmas == "grid" else self._between(place)
        return sigma.expand(num_members, -1)

    def _between(self, place: Tensor) -> Tensor:
        """Places in [0, 1) to noise levels inside the range."""
        if self.sigmas == "logit_normal":
            place = torch.special.ndtri(place.double()).sigmoid().to(place.dtype)
        low, high = self.sigma_range
        return low + (high - low) * (self.shift * place / (1 + (self.shift - 1) * place))

    def _on_grid(self, place: Tensor, grid: Sequence[float]) -> Tensor:
        """Places [n, draws] in [0, 1), each within its own part of the grid, to levels of it."""
        low, high = self.sigma_range
        levels = torch.tensor([sigma for sigma in grid if low <= sigma <= high])
        if not len(levels):
            without = "none: outputs that were given have no sampler, and a flow has no timesteps of its own"
            seen = ", ".join(f"{sigma:.3f}" for sigma in grid) or without
            raise ConfigError(
                f"loss.sigmas is 'grid', but the sampler has no noise level in loss.sigma_range, {low} to {high}; its "
                f"levels are {seen}"
            )
        part = (torch.arange(self.draws) + place) / self.draws
        return levels[(part * len(levels)).long().clamp(max=len(levels) - 1)]

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        return normalised_weights(batch.weight, batch.group, "decision")

    def penalties(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Squared distances [B, K] of the velocities, one for each penalty."""
        trained: Denoising = forward_outputs.trained
        return tuple(trained.velocity_gap(getattr(forward_outputs, which)) for which in self._penalties())

    def penalised(self, terms: Tensor, penalties: Sequence[Tensor], metrics: Mapping[str, Tensor]) -> LossTerms:
        """The loss's terms [B, K] plus the penalties, and its metrics plus these, as `reference_error` and the like."""
        found = dict(metrics)
        for (which, weight), error in zip(self._penalties().items(), penalties, strict=True):
            terms = terms + weight * error
            found[f"{which}_error"] = error
        return LossTerms(terms, {name: values.detach() for name, values in found.items()})


def velocity_error(at: Denoising) -> Tensor:
    """[B, K] mean squared error of the predicted velocity: l = mean (v - v*)^2, v* = noise - clean."""
    return at.spread(reduce_elements((at.prediction - at.target).square(), "mean"))


def noise_error(at: Denoising) -> Tensor:
    """[B, K] mean squared error of the noise that the velocity implies, noisy + (1 - sigma) v: (1 - sigma)^2 l."""
    return velocity_error(at) * (1 - at.spread(at.sigma)).square()


def clean_error(at: Denoising, velocity: Tensor, *, is_adaptive: bool) -> Tensor:
    """[B, K] mean squared error of the clean latents that `velocity` [N, ...] implies, noisy - sigma velocity.

    `is_adaptive`: divided by its own mean absolute error (at least 1e-5), without a gradient, as in DiffusionNFT (arXiv
    2509.16117).
    """
    # (noisy - sigma v) - (noisy - sigma target), without the cancellation
    error = at.sigma.view(-1, *[1] * (velocity.dim() - 1)) * (at.target - velocity)
    squared = reduce_elements(error.square(), "mean")
    if is_adaptive:
        squared = squared / reduce_elements(error.detach().abs(), "mean").clamp(min=1e-5)
    return at.spread(squared)
