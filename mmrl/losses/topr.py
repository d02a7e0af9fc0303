"""TOPR: REINFORCE in which bad samples are weighed by their truncated ratio, and good samples are not."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, Scope
from mmrl.core.numerics import Normalisation

from .base.ratio import RatioLoss, path_sum, ratio_of


@dataclass(frozen=True)
class Topr(RatioLoss):
    """The term -stop_gradient(w) A log(new / old), w = 1 where A >= 0, else the sample's ratio, at most 1.

    Le Roux et al. 2025, "Tapered Off-Policy REINFORCE", arXiv 2503.14286. The ratio is that of the whole sample, the
    product over its decisions. A bad sample that has become unlikely no longer pushes the policy, so old rollouts do no
    harm and no penalty is needed. Old log-probs are constants, so the gradient is that of -w A log_prob. The sum over a
    sample's decisions is its log-likelihood, hence normalise "constant". On latents the product is in the unit of the
    reduction; "sum" is the likelihood.
    """

    # What counts alike: each decision, sample or group; under `constant` a sample counts by its sum.
    normalise: Normalisation = "constant"

    scope: ClassVar[Scope] = "path"

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = compared[0]
        ratio = ratio_of(path_sum(log_ratio.detach(), batch.weight))
        weight = torch.where(batch.advantages < 0, ratio.clamp(max=1), torch.ones_like(ratio))
        return -weight * batch.advantages * log_ratio, {"ratio": ratio, "weight": weight}
