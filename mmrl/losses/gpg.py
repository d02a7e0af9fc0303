"""GPG: the plain policy gradient, with groups of equal rewards left out of the denominator."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import Normalisation, group_sum

from .reinforce import Reinforce


@dataclass(frozen=True)
class Gpg(Reinforce):
    """The term -A log_prob of each decision; degenerate groups, whose advantages are all 0, leave the denominator.

    Chu et al. 2025, "GPG: A Simple and Strong Reinforcement Learning Baseline", arXiv 2504.02546: no ratio, no clip, no
    reference; rewards minus the group's mean without a std (a setting of the advantage). The paper multiplies by
    B / (B - M) for M of B samples in groups of equal rewards; here those samples leave the denominator, which is the
    same for answers of one length and right for any length. Without such groups this is REINFORCE with normalise
    "decision".

    Raises ValueError for settings out of range.
    """

    # What counts alike: each decision, sample or group; `constant` divides each sample's sum by a number.
    normalise: Normalisation = "decision"

    def coefficients(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        size = torch.where(batch.weight > 0, batch.advantages.abs(), torch.zeros_like(batch.advantages))
        teaches = group_sum(size.sum(1), batch.group) > 0  # [B]
        return super().coefficients(replace(batch, weight=batch.weight * teaches[:, None]))
