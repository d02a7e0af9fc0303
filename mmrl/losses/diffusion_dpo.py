"""Diffusion-DPO: direct preference optimization of images, with the denoising loss in place of log-probs."""

from dataclasses import dataclass
from typing import ClassVar, get_args

from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights, Scope
from mmrl.core.data import WeightsName
from mmrl.core.forward_outputs import Denoising

from .base.denoising import DenoisingLoss, Sharing, noise_error
from .base.paths import Pairs, preferred_pairs
from .base.preferences import Couples
from .base.settings import check_above, check_one_of


@dataclass(frozen=True)
class DiffusionDpo(DenoisingLoss):
    """-log sigmoid(-beta / 2 ((l_w - l_w reference) - (l_l - l_l reference))), a winner w and a loser l of a group.

    Wallace et al. 2023, "Diffusion Model Alignment Using Direct Preference Optimization", arXiv 2311.12908, eq. 14; the
    half is that of the authors' code. l is the mean squared error of the predicted noise, at one noise level and noise
    for both. Pairs come from the scores of a group, two brought by the data (sampler `given`) or any number drawn:
    `pairs` is its best with its worst (`extremes`), each with the next worse (`adjacent`), or every two. Equal scores
    make no pair; every pair counts alike.

    `refresh_every`: the reference is the trained weights of the last multiple of so many iterations, which then draw
    the rollouts too (online DPO); None: those that the run began with.

    Raises ValueError for settings out of range.
    """

    levels: Sharing = "group"
    noise: Sharing = "group"
    beta: float = 5000.0
    pairs: Pairs = "extremes"
    refresh_every: int | None = None

    min_group_size: ClassVar[int] = 2  # the smallest group it can learn from
    requires_behaviour: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("beta", self.beta)
        check_one_of("pairs", self.pairs, get_args(Pairs))
        if self.refresh_every is not None and self.refresh_every < 1:
            raise ValueError(f"refresh_every must be at least 1 iteration, got {self.refresh_every}")

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
        """1 keeps the old weights, 0 makes them those of now."""
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
        """l [B, K]."""
        return noise_error(at)

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """l of the trained weights and of the reference, and the squared distances of the penalties: [B, K] each."""
        compared = getattr(forward_outputs, self._compared_with)
        return (self.error(forward_outputs.trained), self.error(compared), *self.penalties(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        error, compared, *penalties = measures
        pairs = self._pairs(batch)
        margin = -self.beta / 2 * pairs.difference(error - compared)  # [M, K] of implied rewards
        terms, _ = pairs.onto_winners(-logsigmoid(margin), batch.weight)
        won = (margin > 0).to(margin.dtype)
        metrics = {
            "matching": error,
            "margin": pairs.onto_groups(margin.detach(), batch.weight, batch.group),
            "accuracy": pairs.onto_groups(won, batch.weight, batch.group),
        }
        of_pairs = [pairs.onto_winners(pairs.mean(one), batch.weight)[0] for one in penalties]
        result = self.penalised(terms, of_pairs, metrics)
        # what is watched are the distances of all samples, not those that winners stand for
        own = {f"{which}_error": one.detach() for which, one in zip(self._penalties(), penalties, strict=True)}
        return LossTerms(result.terms, {**result.metrics, **own})
