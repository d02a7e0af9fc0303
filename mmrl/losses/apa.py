"""APA: the log-ratio of each decision regresses on its advantage."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.log_ratios import Anchor, AnchoredLoss


@dataclass(frozen=True)
class Apa(AnchoredLoss):
    """(log-ratio to the reference - A / temperature)^2 of each decision.

    Zhu et al. 2023, "Fine-Tuning Language Models with Advantage-Induced Policy Alignment", arXiv 2306.02231, whose
    lambda is the temperature; the default is ours, the authors' script for summaries has 0.1. The loss pulls the policy
    towards reference * exp(A / temperature), without a ratio or a clip. Where the ratios to the anchor are 1, its
    gradient is that of REINFORCE times 2 / temperature.

    Raises ValueError for settings out of range.
    """

    # The log-ratio of a decision regresses on its advantage divided by this number.
    temperature: Annotated[float, Field(gt=0)] = 1.0
    # The weights whose log-probs the trained ones are compared with: `old`, `reference`, or `averaged`.
    anchor: Anchor = "reference"

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return (compared[0] - batch.advantages / self.temperature).square(), {}
