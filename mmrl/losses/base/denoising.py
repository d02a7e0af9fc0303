"""The base of losses on the forward process: noised copies of samples, squared errors, penalties on velocities.

Maths: docs/maths/denoising-losses.md
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import ConfigError, LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.data import Rollout, WeightsName
from mmrl.core.declarations import LossDeclaration
from mmrl.core.forward_outputs import Denoising
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import normalised_weights, reduce_elements
from mmrl.core.views import DenoisingView

Sigmas = Literal["uniform", "stratified", "logit_normal", "grid"]
Sharing = Literal["sample", "group"]
Kind = Literal["decisions", "denoising", "outputs"]


@dataclass(frozen=True)
class DenoisingLoss(Checked):
    """The base of losses on the forward process, with their settings; a loss adds `measure` and its formula.

    Each optimizer step noises each sample `draws` times, x = (1 - sigma) clean + sigma noise. The noise levels are
      uniform     uniform in `sigma_range`;
      stratified  one in each of the group's G * draws strata;
      logit_normal  the logistic of a standard normal number (Esser et al. 2024, arXiv 2403.03206, section 3.1);
      grid        the sampler's own levels inside `sigma_range`, one in each of `draws` parts of them. Offline outputs
                  have no sampler: their levels are those of the network's timesteps, as in its training, where the
                  family has timesteps (a flow has none).
    `shift` s moves the levels of the first three to s sigma / (1 + (s - 1) sigma). `levels: group` and `noise: group`
    compare a pair or a group at one noise level and under one noise.

    Penalties: `reference_weight` and `averaged_weight` times the mean squared distance of the velocity to that of the
    reference and of the averaged weights. A weight of 0 saves the network call.

    Raises ValueError for settings out of range.
    """

    draws: Annotated[int, Field(ge=1, le=10_000)] = 1  # noise samples of each sample for each optimizer step
    # How noise levels are sampled: `uniform`; `stratified`, one in each of the group's strata; `logit_normal`, the
    # logistic of a normal number; `grid`, the sampler's own levels, one in each of `draws` parts.
    sigmas: Sigmas = "uniform"
    # The smallest and the largest noise level; [0.0, 0.999] leaves out the first level of a grid, pure noise.
    sigma_range: tuple[float, float] = (0.0, 1.0)
    # s moves a level to s sigma / (1 + (s - 1) sigma); not the levels of `grid`.
    shift: Annotated[float, Field(gt=0)] = 1.0
    levels: Sharing = "sample"  # noise levels of their own for each `sample`, or one for the members of a `group`
    noise: Sharing = "sample"  # noise of its own for each `sample`, or one for the members of a `group`
    # Weight of the squared distance of the velocity to the reference's; 0 saves its network call.
    reference_weight: Annotated[float, Field(ge=0)] = 0.0
    # Weight of the squared distance of the velocity to that of the averaged weights, which need `averaging`.
    averaged_weight: Annotated[float, Field(ge=0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.sigma_range
        if not 0 <= low < high <= 1:
            raise ValueError(f"sigma_range must be two ascending noise levels in [0, 1], got {low} and {high}")

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
        """Returns the coefficient of each penalty, by the weights that the velocity is compared with."""
        weights: dict[WeightsName, float] = {"reference": self.reference_weight, "averaged": self.averaged_weight}
        return {which: weight for which, weight in weights.items() if weight > 0}

    @property
    def declaration(self) -> LossDeclaration:
        is_denoising = self.kind == "denoising"
        return LossDeclaration(
            calls_per_sample=self.draws, requires_noise_levels=is_denoising and self.sigmas == "grid"
        )

    def old_decay(self, iteration: int) -> float | None:
        """Returns None: the old weights are those that sampled the rollout."""
        return None

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[DenoisingView]:
        """Returns one view with `draws` noised copies of each sample of `rows`.

        The seeds depend on the step's key, the prompt index and the sample's place among the samples of the prompt.
        """
        sigma, seeds = torch.empty(rollout.num_samples, self.draws), {}
        for index in rollout.prompt_index[rows].unique().tolist():
            members = (rollout.prompt_index == index).nonzero().squeeze(1)
            sigma[members] = self._sigma(key.seed_for("sigma", index), len(members), rollout.levels.get(index, ()))
            for member, row in enumerate(members.tolist()):
                sharing = (index, member) if self.noise == "sample" else (index,)
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
        """Returns the noise levels [G, draws] of the samples of one prompt index."""
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
        """Returns the noise levels inside `sigma_range` of places in [0, 1)."""
        if self.sigmas == "logit_normal":
            place = torch.special.ndtri(place.double()).sigmoid().to(place.dtype)
        low, high = self.sigma_range
        return low + (high - low) * (self.shift * place / (1 + (self.shift - 1) * place))

    def _on_grid(self, place: Tensor, grid: Sequence[float]) -> Tensor:
        """Returns levels of the grid for places [n, draws] in [0, 1), each place within its own part of the grid."""
        low, high = self.sigma_range
        levels = torch.tensor([sigma for sigma in grid if low <= sigma <= high])
        if not len(levels):
            no_grid = "none: outputs that the data brings have no sampler, and a flow has no timesteps of its own"
            known = ", ".join(f"{sigma:.3f}" for sigma in grid) or no_grid
            raise ConfigError(
                f"loss.sigmas is 'grid', but the sampler has no noise level in loss.sigma_range, {low} to {high}; its "
                f"levels are {known}"
            )
        part = (torch.arange(self.draws) + place) / self.draws
        return levels[(part * len(levels)).long().clamp(max=len(levels) - 1)]

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        return normalised_weights(batch.weight, batch.group, "decision")

    def penalties(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the squared distances [B, K] of the velocities, one for each penalty."""
        trained: Denoising = forward_outputs.trained
        return tuple(trained.velocity_gap(getattr(forward_outputs, which)) for which in self._penalties())

    def penalised(self, terms: Tensor, penalties: Sequence[Tensor], metrics: Mapping[str, Tensor]) -> LossTerms:
        """Returns the terms [B, K] plus the penalties, with each penalty as a metric such as `reference_error`."""
        with_errors = dict(metrics)
        for (which, weight), error in zip(self._penalties().items(), penalties, strict=True):
            terms = terms + weight * error
            with_errors[f"{which}_error"] = error
        return LossTerms(terms, {name: values.detach() for name, values in with_errors.items()})


def velocity_error(at: Denoising) -> Tensor:
    """Returns the mean squared error [B, K] of the predicted velocity: l = mean (v - v*)^2, v* = noise - clean."""
    return at.spread(reduce_elements((at.prediction - at.target).square(), "mean"))


def noise_error(at: Denoising) -> Tensor:
    """Returns the mean squared error [B, K] of the implied noise, noisy + (1 - sigma) v: (1 - sigma)^2 l."""
    return velocity_error(at) * (1 - at.spread(at.sigma)).square()


def clean_error(at: Denoising, velocity: Tensor, *, is_adaptive: bool) -> Tensor:
    """Returns the mean squared error [B, K] of the clean latents that `velocity` [N, ...] implies.

    These latents are noisy - sigma velocity. `is_adaptive` divides each error by its own mean absolute error (at least
    1e-5), without a gradient, as in DiffusionNFT (arXiv 2509.16117).
    """
    # (noisy - sigma v) - (noisy - sigma target), without the cancellation
    error = at.sigma.view(-1, *[1] * (velocity.dim() - 1)) * (at.target - velocity)
    squared = reduce_elements(error.square(), "mean")
    if is_adaptive:
        squared = squared / reduce_elements(error.detach().abs(), "mean").clamp(min=1e-5)
    return at.spread(squared)
