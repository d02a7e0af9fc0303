"""GRPO-Guard: ratios of denoising steps freed of their bias and of the step's scale, and steps weighed alike.

Maths: docs/maths/group-relative-losses.md#grpo-guard
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, OutputsByWeights

from .grpo import Grpo


@dataclass(frozen=True)
class Guard(Grpo):
    """GRPO's term with rho = exp(z . (mean - old mean)), divided by the step h = sigma - sigma_next.

    Wang et al. 2025, "GRPO-Guard", arXiv 2510.22319, eq. 8 and the reweighting behind it. z is the noise that was
    drawn, the product a mean over the latent's elements (with reduction "mean", which the clip range is for). The paper
    adds the bias (mean - old mean)^2 / (2 std^2) to the log-ratio and multiplies by std: that is this projection, where
    nothing cancels. Such ratios spread alike at all noise levels, and a step's gradient by the velocity is c / h with
    c = d mean / d velocity: 1 + noise_level^2 / 2 at every step of Flow-GRPO's sampler but the first. A penalty is not
    divided by h, as in the authors' code.

    Raises ValueError for settings out of range.
    """

    clip_low: float = 2e-6  # 4e-6 for PickScore and HPS
    clip_high: float = 2e-6

    @property
    def requires(self) -> frozenset[str]:
        return super().requires | {"noise", "step"}

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """The shift along the noise, and the size of each step.

        Raises ValueError for decisions that do not say how large their steps are.
        """
        trained = forward_outputs.trained
        if trained.step is None:
            raise ValueError("guard needs the size of each step, which the decisions do not say")
        return (trained.shift_along_noise(forward_outputs.old), trained.step)

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        shift, step = compared
        terms, metrics = super().terms((shift,), batch)
        return terms / torch.where(step > 0, step, torch.ones_like(step)), metrics
