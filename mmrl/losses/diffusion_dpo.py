"""Diffusion-DPO: direct preference optimization of images, with the denoising loss in place of log-probs."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.data import WeightsName
from mmrl.core.declarations import LossDeclaration
from mmrl.core.forward_outputs import Denoising

from .base.denoising import DenoisingLoss, Sharing, noise_error
from .base.paths import Pairs, preferred_pairs
from .base.preferences import Couples


@dataclass(frozen=True)
class DiffusionDpo(DenoisingLoss):
    """The term -log sigmoid(-beta / 2 ((l_w - l_w reference) - (l_l - l_l reference))) of a winner w and a loser l.

    Wallace et al. 2023, "Diffusion Model Alignment Using Direct Preference Optimization", arXiv 2311.12908, eq. 14; the
    half is that of the authors' code. l is the mean squared error of the predicted noise, at one noise level and noise
    for both. Pairs come from the scores of a group: of two samples that the data brings (sampler `given`), or of any
    number that the policy sampled. Equal scores make no pair; every pair counts alike.

    With `refresh_every` the reference is the trained weights of the last multiple of so many iterations, which then
    also sample the rollouts (online DPO); without it, the weights that the run began with.

    Raises ValueError for settings out of range.
    """

    levels: Sharing = "group"  # the two samples of a pair share their noise levels, or each `sample` has its own
    noise: Sharing = "group"  # the two samples of a pair share their noise, or each `sample` has its own
    # Times half the difference of errors; the error is a mean over the elements of a latent.
    beta: Annotated[float, Field(gt=0)] = 5000.0
    # Which pairs of a group: `extremes` (the best with the worst), `all`, `adjacent` (each with the next worse).
    pairs: Pairs = "extremes"
    # Iterations after which the reference becomes the current policy, which also samples the rollouts; `null`: the
    # reference stays the policy that the run began with.
    refresh_every: Annotated[int, Field(ge=1)] | None = None

    @property
    def declaration(self) -> LossDeclaration:
        return replace(super().declaration, min_group_size=2, requires_behaviour=False)

    @property
    def scope(self) -> Scope:
        return "group"

    @property
    def needs(self) -> frozenset[WeightsName]:
        return super().needs | {self._compared_with}

    @property
    def _compared_with(self) -> WeightsName:
        return "reference" if self.refresh_every is None else "old"

    def old_decay(self, iteration: int) -> float | None:
        """Returns 1, which keeps the old weights, or 0, which replaces them by the trained weights."""
        if self.refresh_every is None:
            return None
        return 0.0 if (iteration + 1) % self.refresh_every == 0 else 1.0

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        pairs = self._pairs(batch)
        counts = pairs.weight(batch.weight)
        _, number = pairs.onto_winners(counts, batch.weight)
        return number, number.sum()

    def _pairs(self, batch: LossBatch) -> Couples:
        return Couples(*preferred_pairs(batch.scores, batch.group, (batch.weight > 0).any(1), self.pairs))

    def error(self, at: Denoising) -> Tensor:
        """Returns l [B, K]."""
        return noise_error(at)

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns l of the trained weights and of the reference, then the penalties' distances: [B, K] each."""
        compared = getattr(forward_outputs, self._compared_with)
        return (self.error(forward_outputs.trained), self.error(compared), *self.penalties(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        error, compared, *penalties = measures
        pairs = self._pairs(batch)
        margin = -self.beta / 2 * pairs.difference(error - compared)  # [M, K] of implied rewards
        terms, _ = pairs.onto_winners(-logsigmoid(margin), batch.weight)
        implied = (-self.beta / 2 * (error - compared)).detach()  # [B, K] rewards
        won = (margin > 0).to(margin.dtype)
        metrics = {
            "matching": error,
            "margin": pairs.onto_groups(margin.detach(), batch.weight, batch.group),
            "chosen": pairs.onto_groups(implied[pairs.winner], batch.weight, batch.group),
            "rejected": pairs.onto_groups(implied[pairs.loser], batch.weight, batch.group),
            "accuracy": pairs.onto_groups(won, batch.weight, batch.group),
        }
        of_pairs = [pairs.onto_winners(pairs.mean(one), batch.weight)[0] for one in penalties]
        result = self.penalised(terms, of_pairs, metrics)
        # metrics are the distances of all samples, not only of the pairs that count for their winners
        own = {f"{which}_error": one.detach() for which, one in zip(self._penalties(), penalties, strict=True)}
        return LossTerms(result.terms, {**result.metrics, **own})
