"""CoPG: the contrastive policy gradient, in which each sample is a baseline of the others."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.log_ratios import Anchor
from .base.paths import PairLoss
from .rebel import Rebel


@dataclass(frozen=True)
class Copg(PairLoss):
    """The term (beta m - d)^2 / (2 beta) of each pair, m the difference of its log-ratios, d that of its rewards.

    Flet-Berliac et al. 2024, "Contrastive Policy Gradient", arXiv 2406.19185, whose gradient is that of
    (R(y) - R(y')) (log-prob of y - log-prob of y'), R = reward - beta * log-ratio kept fixed. Log-ratios are to the
    reference, without importance weights: any policy may have made the samples. The loss is REBEL against the reference
    with eta = 1 / beta, divided by 2 beta; for rewards 0 and 1 it has the gradient of IPO at half its beta, times
    beta / 2. `pairs: all` includes pairs of equal rewards.

    Raises ValueError for settings out of range.
    """

    beta: Annotated[float, Field(gt=0)] = 0.1  # weight of the KL to the anchor, in units of reward
    # The weights whose log-probs the trained ones are compared with: `old`, `reference`, or `averaged`.
    anchor: Anchor = "reference"

    has_ties = Rebel.has_ties

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        parent = Rebel(eta=1 / self.beta, pairs=self.pairs, path=self.path, anchor=self.anchor)
        terms, metrics = parent.terms(compared, batch)
        return terms / (2 * self.beta), metrics
