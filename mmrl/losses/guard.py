"""GRPO-Guard: ratios of denoising steps without their bias and the scale of the step, and steps weighed alike.

Maths: docs/maths/group-relative-losses.md#grpo-guard
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.declarations import LossDeclaration

from .grpo import Grpo


@dataclass(frozen=True)
class Guard(Grpo):
    """GRPO's term with rho = exp(z . (mean - old mean)), divided by the step h = sigma - sigma_next.

    Wang et al. 2025, "GRPO-Guard", arXiv 2510.22319, eq. 8 and the reweighting behind it. z is the noise of the step,
    and the product a mean over the latent's elements (with reduction "mean", which the clip range is for). The paper
    adds the bias (mean - old mean)^2 / (2 std^2) to the log-ratio and multiplies by std. The projection here is the
    same number without the cancellation. Such ratios spread alike at all noise levels, and a step's gradient by the
    velocity is c / h with c = d mean / d velocity: 1 + noise_level^2 / 2 at every step of Flow-GRPO's sampler but the
    first. A penalty is not divided by h, as in the authors' code.

    Raises ValueError for settings out of range.
    """

    # The ratio is clipped to 1 - clip_low ... 1 + clip_high; the paper takes 4e-6 for PickScore and HPS.
    clip_low: Annotated[float, Field(gt=0, le=1)] = 2e-6
    clip_high: Annotated[float, Field(gt=0)] = 2e-6  # see `clip_low`

    @property
    def declaration(self) -> LossDeclaration:
        inner = super().declaration
        return replace(inner, requires=inner.requires | {"noise", "step"})

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the shift along the noise, and the size of each step: [B, K] each.

        Raises ValueError where the decisions hold no step sizes.
        """
        trained = forward_outputs.trained
        if trained.step is None:
            raise ValueError("guard needs the size of each step, which the decisions do not hold")
        return (trained.shift_along_noise(forward_outputs.old), trained.step)

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        shift, step = compared
        terms, metrics = super().terms((shift,), batch)
        return terms / torch.where(step > 0, step, torch.ones_like(step)), metrics
