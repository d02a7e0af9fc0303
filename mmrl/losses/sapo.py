"""SAPO: a smooth gate on the ratio in place of a clip."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.ratio import RatioLoss, ratio_of


@dataclass(frozen=True)
class Sapo(RatioLoss):
    """The term -(4 / t) sigmoid(t (rho - 1)) A of each decision, with slope 1 by rho at rho = 1, fading on both sides.

    Gao et al. 2025, "Soft Adaptive Policy Optimization", arXiv 2511.20347: t is `temperature_positive` where A > 0, and
    the larger `temperature_negative` elsewhere, since pushing tokens down spreads over the whole vocabulary. t is
    measured in 1 / units of the ratio: for latents with reduction "mean", whose ratios differ by 1e-4, take about 1e4.

    Raises ValueError for settings out of range.
    """

    # How fast the gradient fades as a ratio leaves 1, where the advantage is positive; of latents about 1 / clip range.
    temperature_positive: Annotated[float, Field(gt=0)] = 1.0
    temperature_negative: Annotated[float, Field(gt=0)] = 1.05  # the same where the advantage is not positive

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = ratio_of(compared[0])
        steep = torch.where(batch.advantages > 0, self.temperature_positive, self.temperature_negative)
        gate = torch.sigmoid(steep * (ratio - 1))
        metrics = {"ratio": ratio, "gate": 4 * gate * (1 - gate)}  # the slope: what is left of the gradient
        return -4 / steep * gate * batch.advantages, metrics
