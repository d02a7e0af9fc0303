"""SFT, supervised fine-tuning: the flow-matching loss of images, or the cross-entropy of answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from mmrl.core.contracts import LossBatch, LossTerms, OutputsByWeights
from mmrl.core.data import Rollout
from mmrl.core.keys import GroupKey
from mmrl.core.numerics import normalised_weights
from mmrl.core.views import View

from .base.decisions import DecisionLoss
from .base.denoising import DenoisingLoss, Kind, velocity_error

Learned = Literal["denoising", "decisions"]


@dataclass(frozen=True)
class Sft(DenoisingLoss):
    """Mean (v - v*)^2 of noised samples, v* = noise - clean (`of: denoising`), or -log p of decisions.

    The first is the flow-matching loss (Lipman et al. 2022, arXiv 2210.02747, eq. 9), for all networks that denoise.
    The second is cross-entropy, for answers: the log-prob is that at the sampling temperature, 1 for offline answers.
    All samples count alike, whatever their scores: those that the data brings (sampler `given`), and those that the
    policy sampled.

    Raises ValueError for settings out of range, and for penalties on velocities with decisions, which have none.
    """

    # `denoising` for images, `decisions` for answers, whose tokens become likelier; noise levels and penalties are for
    # `denoising` only.
    of: Learned = "denoising"
    # What counts alike: noise samples or tokens (`decision`), samples (`sample`) or groups (`group`).
    normalise: Literal["decision", "sample", "group"] = "decision"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of == "decisions" and self._penalties():
            raise ValueError(
                "reference_weight and averaged_weight are for velocities, which `of: decisions` does not have; set "
                "them to 0"
            )

    @property
    def kind(self) -> Kind:
        return self.of

    def views(self, rollout: Rollout, rows: Tensor, key: GroupKey) -> Sequence[View]:  # type: ignore[override]  # or decisions
        """Returns a view with noised copies of the samples `rows`, or with every network call behind them once."""
        if self.of == "decisions":
            return DecisionLoss().views(rollout, rows, key)
        return super().views(rollout, rows, key)

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        return normalised_weights(batch.weight, batch.group, self.normalise)

    def measure(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the squared error or -log p, then the squared distances of the penalties: [B, K] each."""
        trained = forward_outputs.trained
        error = -trained.log_prob() if self.of == "decisions" else velocity_error(trained)
        return (error, *self.penalties(forward_outputs))

    def __call__(self, measures: tuple[Tensor, ...], batch: LossBatch) -> LossTerms:
        error, *penalties = measures
        return self.penalised(error, penalties, {"matching": error})
