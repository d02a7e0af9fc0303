"""Flow-DPPO: a bound on the exact KL of a denoising step in place of a clip on its ratio.

Maths: docs/maths/group-relative-losses.md#flow-dppo
"""

from dataclasses import dataclass

from torch import Tensor

from mmrl.core.contracts import LossBatch, OutputsByWeights

from .base.ratio import RatioLoss, ratio_of
from .base.settings import check_above


@dataclass(frozen=True)
class FlowDppo(RatioLoss):
    """-A rho of each step, 0 where its KL from the old step is `threshold` or more and the update would add to it.

    Ping et al. 2026, "Flow-DPPO", arXiv 2606.11025, eqs. 14 and 18: the KL of two Gaussians is exact,
    (mean - old mean)^2 / (2 std^2), where a ratio sees one draw. An update adds to it where A > 0 and rho > 1, or A < 0
    and rho < 1; the way back stays open. The threshold is that of the authors' code, which averages over a latent's
    elements (reduction "mean"); the equations sum.

    Raises ValueError for settings out of range.
    """

    threshold: float = 1e-5  # math.inf: nothing is masked, REINFORCE with an importance ratio

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("threshold", self.threshold)

    @property
    def requires(self) -> frozenset[str]:
        return super().requires | {"exact_kl"}

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """The log-ratio, and how far each step is from the old one."""
        return (*super().compare(forward_outputs), forward_outputs.trained.kl(forward_outputs.old).detach())

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio, kl = compared
        ratio, advantages = ratio_of(log_ratio), batch.advantages
        is_leaving = ((advantages > 0) & (ratio > 1)) | ((advantages < 0) & (ratio < 1))
        is_masked = (kl >= self.threshold) & is_leaving
        metrics = {"ratio": ratio, "kl_old": kl, "mask_fraction": is_masked.to(ratio.dtype)}
        return (-advantages * ratio).masked_fill(is_masked, 0.0), metrics
