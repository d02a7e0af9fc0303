"""Reg-GRPO: the log-ratios of a group regress on its advantages, without a clip."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import group_sum

from .base.paths import PathLoss, centred, present

Scale = Literal["group", "beta"]


@dataclass(frozen=True)
class RegGrpo(PathLoss):
    """The term (A - P)^2 of each sample, P the advantage that its log-ratio to the old weights predicts.

    Park et al. 2025, "DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO", arXiv
    2506.07464, eqs. 7 and 8 (the minus before the KL is read as a slip: `kl_coef` adds the KL). P is the log-ratio
    minus the mean of its group,
      scale beta: times beta, as the paper derives it for a beta that is the weight of its KL over the std of the
          rewards. There is one fixed optimum, 0, where beta * the centred log-ratio is the advantage.
      scale group: divided by the group's standard deviation (population), as the paper prints it; here
          sqrt(variance + epsilon^2), since at the first step all log-ratios are 0 and the printed quotient is 0 / 0.
          The gradient of that step is 1 / epsilon times that of `beta: 1`, so its length is set by the norm at which
          gradients are clipped. Take this scale with several optimizer steps on a rollout.
    The authors compare 8 answers and weigh their KL by 0.1; they name no epsilon.

    The advantage of a sample is the mean of those of its decisions. At ratio 1 `beta` has the gradient of REINFORCE
    with summed log-probs, times 2 beta, where advantages have the mean 0. Raises ValueError for settings out of range.
    """

    # The predicted advantage is the centred log-ratio times `beta`, or divided by the std of its `group`. Take `group`
    # with several optimizer steps and clipped gradients: at the first step its gradient is 1 / epsilon times as large.
    scale: Scale = "beta"
    beta: Annotated[float, Field(gt=0)] = 1.0  # for `scale: beta`
    # For `scale: group`, in nats: bounds the std of the log-ratios from below.
    epsilon: Annotated[float, Field(gt=0)] = 1e-4

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        predicted = self.predicted(self.of_samples(compared[0], batch), batch)
        is_there = batch.weight > 0
        advantage = (batch.advantages * is_there).sum(1) / is_there.sum(1).clamp(min=1)
        error = predicted - advantage
        return error.square(), {"advantage_error": error.detach().abs()}

    def predicted(self, log_ratio: Tensor, batch: LossBatch) -> Tensor:
        """Returns the predicted advantages [B] of the samples' log-ratios [B]."""
        gap = centred(log_ratio, batch)
        if self.scale == "beta":
            return self.beta * gap
        count = group_sum(present(batch).to(gap.dtype), batch.group).clamp(min=1)
        variance = group_sum(gap.square(), batch.group) / count
        return gap / (variance + self.epsilon**2).sqrt()
