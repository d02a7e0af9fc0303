"""Reg-GRPO: the log-ratios of a group regress on its advantages; nothing is clipped."""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.numerics import group_sum

from .base.paths import PathLoss, centred, present
from .base.settings import check_above, check_one_of

Scale = Literal["group", "beta"]


@dataclass(frozen=True)
class RegGrpo(PathLoss):
    """(A - P)^2 of each sample, P the advantage that its log-ratio to the old weights predicts.

    Park et al. 2025, "DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO", arXiv
    2506.07464, eqs. 7 and 8 (their minus before the KL is read as a slip: `kl_coef` adds it). P is the log-ratio less
    the mean of its group,
      scale beta: times beta, which is what the paper's derivation gives where beta is the weight of its KL over the
          std of the rewards. One fixed optimum, 0 where beta * the centred log-ratio is the advantage.
      scale group: divided by the group's standard deviation (population), as printed: sqrt(variance + epsilon^2), since
          at the first step all log-ratios are 0 and theirs is 0 / 0. The gradient of that step is 1 / epsilon times
          that of `beta: 1`, and it does not say how far to go: the norm at which gradients are clipped does. So it is
          for several optimizer steps on a rollout.
    The authors compare 8 answers and weigh their KL by 0.1; they name no epsilon.

    The advantage of a sample is the mean of those of its decisions. At ratio 1 `beta` has the gradient of REINFORCE
    with summed log-probs, times 2 beta, where advantages have the mean 0. Raises ValueError for settings out of range.
    """

    scale: Scale = "beta"
    beta: float = 1.0  # for scale beta
    epsilon: float = 1e-4  # for scale group, in nats of a sample's log-ratio

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("scale", self.scale, get_args(Scale))
        for name in ("beta", "epsilon"):
            check_above(name, getattr(self, name))

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        predicted = self.predicted(self.of_samples(compared[0], batch), batch)
        is_there = batch.weight > 0
        advantage = (batch.advantages * is_there).sum(1) / is_there.sum(1).clamp(min=1)
        error = predicted - advantage
        return error.square(), {"advantage_error": error.detach().abs()}

    def predicted(self, log_ratio: Tensor, batch: LossBatch) -> Tensor:
        """[B] from the samples' log-ratios [B]."""
        gap = centred(log_ratio, batch)
        if self.scale == "beta":
            return self.beta * gap
        count = group_sum(present(batch).to(gap.dtype), batch.group).clamp(min=1)
        variance = group_sum(gap.square(), batch.group) / count
        return gap / (variance + self.epsilon**2).sqrt()
