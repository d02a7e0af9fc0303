"""APA: the log-ratio of each decision regresses on its advantage."""

from dataclasses import dataclass

from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.log_ratios import Anchor, AnchoredLoss
from .base.settings import check_above


@dataclass(frozen=True)
class Apa(AnchoredLoss):
    """(log-ratio to the reference - A / temperature)^2 of each decision.

    Zhu et al. 2023, "Fine-Tuning Language Models with Advantage-Induced Policy Alignment", arXiv 2306.02231, whose
    lambda is the temperature; the default is ours, the authors' script for summaries has 0.1. It draws the policy to
    reference * exp(A / temperature): no ratio, no clip. Where ratios to the anchor are 1 its gradient is that of
    REINFORCE times 2 / temperature.

    Raises ValueError for settings out of range.
    """

    temperature: float = 1.0
    anchor: Anchor = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("temperature", self.temperature)

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return (compared[0] - batch.advantages / self.temperature).square(), {}
