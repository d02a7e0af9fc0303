"""Supervised fine-tuning: the likelihood of samples, of images by the flow-matching loss and of answers by tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import Normalisation, normalised_weights
from mmrl.core.views import View

from .base.decisions import DecisionLoss
from .base.denoising import DenoisingLoss, Kind, velocity_error
from .base.settings import check_one_of

Learned = Literal["denoising", "decisions"]


@dataclass(frozen=True)
class Sft(DenoisingLoss):
    """Mean (v - v*)^2 of noised samples, v* = noise - clean (`of: denoising`), or -log p of decisions.

    The first is the flow-matching loss (Lipman et al. 2022, arXiv 2210.02747, eq. 9), for anything that denoises; the
    second cross-entropy, for answers, whose log-prob is that of the temperature they were drawn at, 1 for given ones.
    All samples count alike, whatever they score: those that the data brings (sampler `given`), or that the policy drew.

    Raises ValueError for settings out of range, and for penalties in velocities on decisions, which have none.
    """

    of: Learned = "denoising"
    normalise: Normalisation = "decision"  # what counts alike, see `numerics.normalised_weights`; here draws or tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("of", self.of, get_args(Learned))
        check_one_of("normalise", self.normalise, ("decision", "sample", "group"))
        if self.of == "decisions" and self._penalties():
            raise ValueError("reference_weight and averaged_weight are of velocities, which `of: decisions` has not")

    @property
    def kind(self) -> Kind:
        return self.of

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[View]:  # type: ignore[override]  # or decisions
        """Noised copies of the samples `rows`, or every network call behind them once."""
        if self.of == "decisions":
            return DecisionLoss().views(rollout, rows, key)
        return super().views(rollout, rows, key)

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        return normalised_weights(batch.weight, batch.group, self.normalise)

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """What is to fall, and the squared distances of the penalties: [B, K] each."""
        trained = forward_outputs.trained
        error = -trained.log_prob() if self.of == "decisions" else velocity_error(trained)
        return (error, *self.penalties(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        error, *penalties = measures
        return self.penalised(error, penalties, {"matching": error})
