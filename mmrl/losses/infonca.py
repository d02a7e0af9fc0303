"""InfoNCA: which sample of a group is the best one, with the rewards for labels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import group_log_softmax, group_max, group_sum

from .base.log_ratios import Anchor
from .base.paths import PathLoss, present
from .base.settings import check_above, check_at_least


@dataclass(frozen=True)
class Infonca(PathLoss):
    """-sum over a group of softmax(reward / alpha) * log softmax(beta * log-ratio to the reference).

    Chen et al. 2024, "Noise Contrastive Alignment of Language Models with Explicit Rewards", arXiv 2402.05369. alpha 0
    puts all the weight on the best sample, shared among equals; with two samples that is DPO. A group of equal rewards
    holds its members' log-ratios together. The alpha is ours, for rewards in [0, 1], and beta that of DPO; the authors'
    settings have alpha 1e-4 (1e-3 in their code, so nearly all the weight is on the best sample) and beta 0.01.

    Raises ValueError for settings out of range.
    """

    alpha: float = 0.1  # in units of reward
    beta: float = 0.1
    anchor: Anchor = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("alpha", self.alpha)
        check_above("beta", self.beta)

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        implicit, labels, members = self.beta * self.of_samples(compared[0], batch), self.labels(batch), present(batch)
        log_prob = group_log_softmax(implicit, batch.group, members)
        agreement = group_sum(labels * log_prob.detach().exp(), batch.group)
        return -group_sum(labels * log_prob, batch.group), {"label_prob": agreement}

    def labels(self, batch: LossBatch) -> Tensor:
        """[B]: softmax of the rewards of each group, 0 for samples that take no part."""
        members = present(batch)
        if self.alpha > 0:
            return group_log_softmax(batch.scores / self.alpha, batch.group, members).exp() * members
        most = group_max(torch.where(members, batch.scores, -torch.inf), batch.group)
        is_best = (members & (batch.scores == most)).to(batch.scores.dtype)
        return is_best / group_sum(is_best, batch.group).clamp(min=1)
