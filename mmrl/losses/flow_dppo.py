"""Flow-DPPO: a bound on the exact KL of a denoising step in place of a clip on its ratio.

Maths: docs/maths/group-relative-losses.md#flow-dppo
"""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.declarations import LossDeclaration

from .base.ratio import RatioLoss, ratio_of


@dataclass(frozen=True)
class FlowDppo(RatioLoss):
    """The term -A rho of each step, 0 where its KL from the old step is large and the update would raise it.

    Ping et al. 2026, "Flow-DPPO", arXiv 2606.11025, eqs. 14 and 18: the KL of two Gaussians is exact,
    (mean - old mean)^2 / (2 std^2), while a ratio sees a single sample. A KL is large at `threshold` or more. An update
    raises it where A > 0 and rho > 1, or A < 0 and rho < 1; updates that lower the KL stay possible. The threshold is
    that of the authors' code, which averages over a latent's elements (reduction "mean"); the equations sum.

    Raises ValueError for settings out of range.
    """

    # The KL from which on a step is masked, in the unit of `modality.reduction`; infinity: REINFORCE with a ratio.
    threshold: Annotated[float, Field(gt=0)] = 1e-5

    @property
    def declaration(self) -> LossDeclaration:
        inner = super().declaration
        return replace(inner, requires=inner.requires | {"exact_kl"})

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the log-ratio, and the KL of each step from the old one without a gradient: [B, K] each."""
        return (*super().compare(forward_outputs), forward_outputs.trained.kl(forward_outputs.old).detach())

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio, kl = compared
        ratio, advantages = ratio_of(log_ratio), batch.advantages
        is_leaving = ((advantages > 0) & (ratio > 1)) | ((advantages < 0) & (ratio < 1))
        is_masked = (kl >= self.threshold) & is_leaving
        metrics = {"ratio": ratio, "kl_old": kl, "mask_fraction": is_masked.to(ratio.dtype)}
        return (-advantages * ratio).masked_fill(is_masked, 0.0), metrics
