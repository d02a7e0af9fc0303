"""DisCO: the good answers of a group against its bad ones, and a constraint on the KL of the whole step."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.declarations import LossDeclaration
from mmrl.core.numerics import group_log_softmax, group_mean, group_sum

from .base.paths import Path, PathLoss, present
from .base.ratio import ratio_of


@dataclass(frozen=True)
class Disco(PathLoss):
    """tau log mean exp(s_bad / tau) - mean s_good of each group, plus hinge_weight / 2 max(0, KL - kl_bound)^2.

    Li et al. 2025, "DisCO: Reinforcing Large Reasoning Models with Discriminative Constrained Optimization", arXiv
    2505.12366, and Optimization-AI/DisCO. A sample's score s is the mean log-prob of its tokens, or their mean ratio to
    the old weights; nothing is clipped. The worst of the bad answers count most, and all alike without a tau (DisCO-b).
    Difficulty weighs no prompt: a group without a good or without a bad answer has term 0 and still counts in the mean.

    The KL is that of the old weights to the trained ones, the mean of -log rho over the step on all processes under the
    present weights, in which a token counts as in the loss: in the mean over its answer first, or, with normalise
    "decision", like every other token, as in the authors' code.
    The step's tokens are evaluated once more for it. The value of the loss holds the slope of the hinge times the KL,
    which has the same gradient.

    Raises ValueError for settings out of range.
    """

    # The score of a sample: its mean `log_likelihood`, or its mean `likelihood_ratio` to the old weights.
    score: Literal["log_likelihood", "likelihood_ratio"] = "log_likelihood"
    # How sharply the bad answers of highest score stand out; 1 for ratios in the paper. `null`: all count alike.
    tau: Annotated[float, Field(gt=0)] | None = 10.0
    kl_bound: Annotated[float, Field(ge=0)] = 1e-4  # the KL of a step in nats per token from which on it costs (delta)
    hinge_weight: Annotated[float, Field(ge=0)] = 1e3  # weight of the squared excess over the bound (beta)
    # A sample with a total above this is a good one, all others are bad ones; `null`: above the mean of its group, the
    # same for rewards of 0 and 1.
    positive_above: float | None = None
    path: Path = "mean"  # the score of a sample is the `mean` over its decisions, or their `sum`

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchor != "old":
            raise ValueError(f"anchor must be 'old', whose samples the KL is measured on, got {self.anchor!r}")

    @property
    def declaration(self) -> LossDeclaration:
        return replace(super().declaration, requires_behaviour=True)

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the log-ratio and the log-prob: [B, K] each."""
        return (*super().compare(forward_outputs), forward_outputs.trained.log_prob())

    def averaged(self, measures: tuple[Tensor, ...]) -> Tensor:
        """Returns -log rho [B, K], whose mean over the step estimates the KL of the old weights to the trained ones."""
        return -measures[0]

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        if batch.step_mean is None:
            raise ValueError("disco needs the KL of the step, which the batch does not hold")
        log_ratio, log_prob = compared
        excess = (batch.step_mean - self.kl_bound).clamp(min=0)
        scores = self.of_samples(log_prob if self.score == "log_likelihood" else ratio_of(log_ratio), batch)
        good, bad = self._sides(batch)
        is_mixed = (group_sum(good.double(), batch.group) > 0) & (group_sum(bad.double(), batch.group) > 0)
        margin = group_mean(scores, batch.group, good) - self._of_bad(scores, batch.group, bad)
        margin = torch.where(is_mixed, margin, torch.zeros_like(margin))
        metrics = {
            "margin": margin.detach(),
            "kl_old": -log_ratio.detach(),
            "constraint": (excess > 0).to(log_ratio.dtype).expand_as(log_ratio),
        }
        return -margin[:, None] - self.hinge_weight * excess * log_ratio, metrics

    def _sides(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        """Returns the good and the bad samples: [B] bool each."""
        members, bound = present(batch), self.positive_above
        # float64: the mean of equal float32 rewards is then exactly that reward, and none of them above it
        totals = batch.scores.double()
        is_good = totals > (group_mean(totals, batch.group, members) if bound is None else bound)
        return members & is_good, members & ~is_good

    def _of_bad(self, scores: Tensor, group: Tensor, bad: Tensor) -> Tensor:
        """Returns tau log mean exp(s / tau) over the bad samples of each sample's group: [B]."""
        if self.tau is None:
            return group_mean(scores, group, bad)
        scaled = scores / self.tau
        # s - log softmax(s) is the logarithm of the sum, the same for all members of a group
        total = group_mean(scaled - group_log_softmax(scaled, group, bad), group, bad)
        count = group_sum(bad.to(scores.dtype), group).clamp(min=1)
        return self.tau * (total - count.log())
