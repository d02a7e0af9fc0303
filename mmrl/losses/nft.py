"""DiffusionNFT: good and bad samples contrasted on the forward process; any sampler, no log-probs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.contracts import Evaluations, LossBatch, LossTerms, Scope
from mmrl.data import Rollout, WeightsName
from mmrl.evaluations import Denoising
from mmrl.keys import GroupKey
from mmrl.losses._old_decay import OldDecay
from mmrl.numerics import normalised_weights, reduce_elements
from mmrl.views import DenoisingView


@dataclass(frozen=True)
class Nft:
    """advantage_max * (r E(v+) + (1 - r) E(v-)) / beta + reference_weight * mean (v - v_reference)^2.

    Zheng et al. 2025, "DiffusionNFT: Online Diffusion Reinforcement with Forward Process", arXiv 2509.16117, eq. 5 and
    section 4; constants of NVlabs/DiffusionNFT. v+ = beta v + (1 - beta) v_old, v- = (1 + beta) v_old - beta v its
    reflection in the old weights, r = clip(1/2 + A / (2 advantage_max), 0, 1) how good the sample is, and E the mean
    squared error of the clean latents that a velocity implies. Each sample is noised again in `draws` ways for each
    optimizer step. The old weights draw the rollouts; they are an average of the trained ones (`decay`).

    Raises ValueError for settings out of range.
    """

    beta: float = 1.0  # length of the contrast: 1 on GenEval and PickScore, 0.1 on OCR
    advantage_max: float = 5.0  # |A| at which a sample is wholly good or bad
    draws: int = 9  # (sigma, noise) draws of each sample; the paper's code: all but the last of 10 steps
    is_adaptive: bool = True  # divide each squared error by its own mean absolute error
    reference_weight: float = 1e-4  # 0 saves the reference's network call
    decay: OldDecay = field(default_factory=OldDecay)
    sigma_range: tuple[float, float] = (0.0, 1.0)
    sigmas: Literal["uniform", "stratified"] = "uniform"  # stratified: one in each of the group's G * draws strata
    noise: Literal["sample", "group"] = "sample"  # who shares the noise of a draw

    kind: ClassVar[Literal["decisions", "denoising", "outputs"]] = "denoising"
    scope: ClassVar[Scope] = "decision"

    def __post_init__(self) -> None:
        for name in ("beta", "advantage_max"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.draws < 1:
            raise ValueError(f"draws must be at least 1, got {self.draws}")
        if self.reference_weight < 0:
            raise ValueError(f"reference_weight must be at least 0, got {self.reference_weight}")
        low, high = self.sigma_range
        if not 0 <= low < high <= 1:
            raise ValueError(f"sigma_range must be two ascending noise levels in [0, 1], got {low} and {high}")
        for name, allowed in (("sigmas", ("uniform", "stratified")), ("noise", ("sample", "group"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    @property
    def needs(self) -> frozenset[WeightsName]:
        return frozenset({"old", "reference"} if self.reference_weight > 0 else {"old"})

    def old_decay(self, iteration: int) -> float:
        return self.decay(iteration + 1)

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[DenoisingView]:
        """`draws` noised copies of each sample, by the step's key, the prompt's key and the place in the group."""
        sigma, seeds = torch.empty(rollout.num_samples, self.draws), {}
        for prompt in rollout.prompt[rows].unique().tolist():
            draw, members = rollout.keys[prompt].draw, (rollout.prompt == prompt).nonzero().squeeze(1)
            sigma[members] = self._sigma(key.seed_for("sigma", draw), len(members))
            for member, row in enumerate(members.tolist()):
                sharing = (draw, member) if self.noise == "sample" else (draw,)
                seeds[row] = [key.seed_for("noise", *sharing, column) for column in range(self.draws)]
        return [
            DenoisingView(
                sample=rows.repeat_interleave(self.draws),
                draw=torch.arange(self.draws).repeat(len(rows)),
                sigma=sigma[rows].flatten(),
                noise_seed=tuple(seed for row in rows.tolist() for seed in seeds[row]),
                num_draws=self.draws,
            )
        ]

    def _sigma(self, seed: int, group_size: int) -> Tensor:
        """Noise levels [G, draws] of a group."""
        generator = torch.Generator().manual_seed(seed)
        size = group_size * self.draws
        place = torch.rand(size, generator=generator)
        if self.sigmas == "stratified":
            place = (torch.randperm(size, generator=generator) + place) / size
        low, high = self.sigma_range
        return (low + (high - low) * place).view(group_size, self.draws)

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        return normalised_weights(batch.weight, batch.group, "decision")

    def measure(self, evaluations: Evaluations) -> tuple[Tensor, ...]:
        """E(v+), E(v-), and the squared distance to the reference if it counts: [B, K] each."""
        trained: Denoising = evaluations.trained
        velocity, old = trained.prediction, evaluations.old.prediction
        errors = [
            self._error(self.beta * velocity + (1 - self.beta) * old, trained),
            self._error((1 + self.beta) * old - self.beta * velocity, trained),
        ]
        if self.reference_weight > 0:
            errors.append(reduce_elements((velocity - evaluations.reference.prediction).square(), "mean"))
        return tuple(trained.spread(error) for error in errors)

    def _error(self, velocity: Tensor, at: Denoising) -> Tensor:
        """Mean squared error of the clean latents that `velocity` implies: [N].

        (noisy - sigma v) - (noisy - sigma target), without the cancellation.
        """
        error = at.sigma.view(-1, *[1] * (velocity.dim() - 1)) * (at.target - velocity)
        squared = reduce_elements(error.square(), "mean")
        if not self.is_adaptive:
            return squared
        return squared / reduce_elements(error.detach().abs(), "mean").clamp(min=1e-5)

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        positive, negative, *reference = measures
        goodness = (0.5 + batch.advantages / (2 * self.advantage_max)).clamp(0, 1)
        terms = self.advantage_max * (goodness * positive + (1 - goodness) * negative) / self.beta
        metrics = {"positive_error": positive, "negative_error": negative}
        for error in reference:
            terms = terms + self.reference_weight * error
            metrics["reference_error"] = error
        return LossTerms(terms, {name: values.detach() for name, values in metrics.items()})
