"""InfoNCA: the choice of the best sample of a group, with labels made of the rewards."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import group_log_softmax, group_max, group_sum

from .base.log_ratios import Anchor
from .base.paths import PathLoss, present


@dataclass(frozen=True)
class Infonca(PathLoss):
    """The term -sum over a group of softmax(reward / alpha) * log softmax(beta * log-ratio to the reference).

    Chen et al. 2024, "Noise Contrastive Alignment of Language Models with Explicit Rewards", arXiv 2402.05369. alpha 0
    puts all the weight on the best sample, shared among equals; with two samples that is DPO. In a group of equal
    rewards the loss pulls the members' log-ratios together. The alpha is ours, for rewards in [0, 1], and beta that of
    DPO; the authors' settings have alpha 1e-4 (1e-3 in their code, so nearly all the weight is on the best sample) and
    beta 0.01.

    Raises ValueError for settings out of range.
    """

    # Rewards are divided by this number before their softmax; 0: the best sample has all the weight.
    alpha: Annotated[float, Field(ge=0)] = 0.1
    beta: Annotated[float, Field(gt=0)] = 0.1  # times the log-ratios, before their softmax
    # The weights whose log-probs the trained ones are compared with: `old`, `reference`, or `averaged`.
    anchor: Anchor = "reference"

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        implicit, labels, members = self.beta * self.of_samples(compared[0], batch), self.labels(batch), present(batch)
        log_prob = group_log_softmax(implicit, batch.group, members)
        agreement = group_sum(labels * log_prob.detach().exp(), batch.group)
        return -group_sum(labels * log_prob, batch.group), {"label_prob": agreement}

    def labels(self, batch: LossBatch) -> Tensor:
        """Returns the softmax [B] of the rewards of each group, 0 for samples that take no part."""
        members = present(batch)
        if self.alpha > 0:
            return group_log_softmax(batch.scores / self.alpha, batch.group, members).exp() * members
        most = group_max(torch.where(members, batch.scores, -torch.inf), batch.group)
        is_best = (members & (batch.scores == most)).to(batch.scores.dtype)
        return is_best / group_sum(is_best, batch.group).clamp(min=1)
