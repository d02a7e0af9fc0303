"""SAPO: a smooth gate on the ratio in place of a clip."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.ratio import RatioLoss, ratio_of
from .base.settings import check_above


@dataclass(frozen=True)
class Sapo(RatioLoss):
    """-(4 / t) sigmoid(t (rho - 1)) A of each decision; its slope by rho is 1 at rho = 1 and fades on both sides.

    Gao et al. 2025, "Soft Adaptive Policy Optimization", arXiv 2511.20347: t is `temperature_positive` where A > 0, and
    the larger `temperature_negative` elsewhere, since pushing tokens down spreads over the whole vocabulary. It is a
    slope in units of the ratio: for latents with reduction "mean", whose ratios differ by 1e-4, take 1e4 or so.

    Raises ValueError for settings out of range.
    """

    temperature_positive: float = 1.0
    temperature_negative: float = 1.05

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("temperature_positive", "temperature_negative"):
            check_above(name, getattr(self, name))

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = ratio_of(compared[0])
        steep = torch.where(batch.advantages > 0, self.temperature_positive, self.temperature_negative)
        gate = torch.sigmoid(steep * (ratio - 1))
        metrics = {"ratio": ratio, "gate": 4 * gate * (1 - gate)}  # the slope: what is left of the gradient
        return -4 / steep * gate * batch.advantages, metrics
