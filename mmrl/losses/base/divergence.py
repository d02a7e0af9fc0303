"""The divergence of the trained weights from other weights, for penalties: exact, in velocities, or estimated.

Maths: docs/maths/group-relative-losses.md#kl-estimators
"""

from typing import Any, Literal

from torch import Tensor

from mmrl.core.declarations import DecisionQuantity
from mmrl.core.numerics import KLEstimator, kl_estimate

KL = Literal["exact", "velocity", "k1", "k2", "k3", "low_var"]
KLTarget = Literal["reference", "averaged"]
REQUIRES: dict[KL, frozenset[DecisionQuantity]] = {
    "exact": frozenset({"exact_kl"}),
    "velocity": frozenset({"velocity"}),
}

LOW_VAR_CAP = 10.0


def divergence(trained: Any, other: Any, kind: KL) -> Tensor:
    """Returns the divergence [B, K] of `trained` from `other`, with a gradient to the trained weights; 0 if equal.

    `exact`: KL(trained || other) of each denoising step, in the unit of the decisions' reduction; tokens have none.
    `velocity`: the mean of (v - v_other)^2, which weighs all noise levels alike (UniGRPO, arXiv 2603.23500); of
        decisions it is KL times 2 std^2 / c^2 with c = d mean / d velocity, and of denoising what NFT and AWM use.
    The estimators see only the sampled choice:
      k1, k2: on-policy, the mean gradient is that of the KL. The gradient of k1 itself has mean 0 and is no penalty,
          so k1 is reported and k2 differentiated (Liu et al. 2025, arXiv 2510.01555).
      k3: never negative, as in GRPO (Shao et al. 2024, arXiv 2402.03300, eq. 4); on-policy, its mean gradient is that
          of the reverse direction, KL(other || trained).
      low_var: min(k3, 10), as verl's and EasyR1's low_var_kl; without a gradient where it is cut.
    On latents take `exact`: it costs the same network call and has no sampling noise. An estimator reads the log-ratio
    in the unit of the reduction and squares that unit: with `mean` its gradient is d times smaller than the exact
    one's, with `rms` sqrt(d) times, with `sum` the same. The estimators keep this unit because published code has it,
    and because exp() of the true log-ratio of a large latent, which k3 would need, overflows.

    Args:
        trained: forward outputs of one view, of decisions or (`velocity` only) of denoising.
        other: those of the other weights.
    Raises:
        ValueError: for the exact KL of tokens.
    """
    if kind == "exact":
        kl: Tensor = trained.kl(other)
        return kl
    if kind == "velocity":
        gap: Tensor = trained.velocity_gap(other)
        return gap
    log_ratio: Tensor = trained.log_ratio(other)
    if kind == "low_var":
        return kl_estimate(log_ratio, "k3").clamp(max=LOW_VAR_CAP)
    return _estimated(log_ratio, kind)


def _estimated(log_ratio: Tensor, estimator: KLEstimator) -> Tensor:
    value = kl_estimate(log_ratio, estimator)
    if estimator != "k1":
        return value
    differentiated = kl_estimate(log_ratio, "k2")
    return value.detach() + (differentiated - differentiated.detach())
