"""CoPG: the contrastive policy gradient, each sample the baseline of the others."""

from dataclasses import dataclass

from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.log_ratios import Anchor
from .base.paths import PairLoss
from .base.settings import check_above
from .rebel import Rebel


@dataclass(frozen=True)
class Copg(PairLoss):
    """(beta m - d)^2 / (2 beta) of each pair: m the difference of its log-ratios to the reference, d that of rewards.

    Flet-Berliac et al. 2024, "Contrastive Policy Gradient", arXiv 2406.19185, whose gradient is that of
    (R(y) - R(y')) (log-prob of y - log-prob of y'), R = reward - beta * log-ratio kept fixed. No importance weights:
    the samples may be those of any policy. It is REBEL against the reference with eta = 1 / beta, divided by 2 beta;
    for rewards 0 and 1 it has the gradient of IPO at half its beta, times beta / 2. `pairs: all` has equal rewards too.

    Raises ValueError for settings out of range.
    """

    beta: float = 0.1
    anchor: Anchor = "reference"

    has_ties = Rebel.has_ties

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("beta", self.beta)

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        parent = Rebel(eta=1 / self.beta, pairs=self.pairs, path=self.path, anchor=self.anchor)
        terms, metrics = parent.terms(compared, batch)
        return terms / (2 * self.beta), metrics
