"""DPO: preferences between samples of a group, for tokens and for denoising steps."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.core.contracts import LossBatch, OutputsByWeights

from .base.log_ratios import Anchor
from .base.paths import PairLoss, Pairs

Form = Literal["sigmoid", "robust", "ipo"]
Offset = Literal["none", "reward_gap", "log_reward_gap"]


@dataclass(frozen=True)
class Dpo(PairLoss):
    """The term -log sigmoid(beta m), m = log-ratio to the reference of the better sample minus that of the worse one.

    Rafailov et al. 2023, "Direct Preference Optimization", arXiv 2305.18290, eq. 7. On groups sampled from the policy
    itself it is online DPO (Dong et al. 2024, "RLHF Workflow", arXiv 2405.07863: the best against the worst). `path:
    mean` is the length-normalised form. The loss of the reference itself is log 2.
      label_smoothing e (cDPO): -(1 - e) log sigmoid(beta m) - e log sigmoid(-beta m).
      form robust (rDPO, Chowdhury et al. 2024, arXiv 2403.00409), right on average when a share e of the labels
          is wrong: (-(1 - e) log sigmoid(beta m) + e log sigmoid(-beta m)) / (1 - 2 e).
      form ipo (Azar et al. 2023, arXiv 2310.12036, eq. 17): (m - 1 / (2 beta))^2; TRL takes it with `path: mean`.
      offset (ODPO, Amini et al. 2024, arXiv 2402.10571): beta m - offset_scale * (reward difference, or its
          logarithm) in place of beta m.
      gap_weight w (MM-DPO, Zhang et al. 2025, "MM-RLHF", arXiv 2502.10391, section 4): beta (1 + w (1 - e^(-k d)))
          in place of beta, for a reward difference d and k = gap_rate, so that clear pairs weigh more.
      sft_coef (RPO, Liu et al. 2024, arXiv 2405.16436; Pang et al. 2024, arXiv 2404.19733): adds
          -sft_coef * log-prob of the better sample / its number of decisions.

    Metrics `chosen` and `rejected` are beta times the log-ratios of the better and the worse samples. Where both fall,
    the loss pushes probability to neither (Ren and Sutherland 2024, "Learning Dynamics of LLM Finetuning", arXiv
    2407.10490): the end of a run says in how many iterations they were below 0.

    Raises ValueError for settings out of range.
    """

    beta: Annotated[float, Field(gt=0)] = 0.1  # times the difference of the log-ratios of a pair
    # `sigmoid`; `robust` (rDPO), right on average with wrong labels; or `ipo`, a squared error.
    form: Form = "sigmoid"
    # Share of wrong labels: cDPO, or with `form: robust` rDPO.
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    offset: Offset = "none"  # ODPO: `reward_gap` or `log_reward_gap` is subtracted from beta m, times `offset_scale`
    offset_scale: Annotated[float, Field(ge=0)] = 1.0  # times the offset
    gap_weight: Annotated[float, Field(ge=0)] = 0.0  # MM-DPO: how much beta grows with the reward difference; its 0.5
    gap_rate: Annotated[float, Field(gt=0)] = 0.5  # MM-DPO: how fast beta grows with the reward difference
    sft_coef: Annotated[float, Field(ge=0)] = 0.0  # RPO: weight of the better sample's mean negative log-prob
    # Which pairs of a group: `extremes` (the best with the worst), `all`, `adjacent` (each with the next worse).
    pairs: Pairs = "extremes"
    # The weights whose log-probs the trained ones are compared with: `old`, `reference`, or `averaged`.
    anchor: Anchor = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "ipo" and (self.label_smoothing > 0 or self.offset != "none"):
            raise ValueError("form 'ipo' has neither label_smoothing nor an offset; take form 'sigmoid' for these")
        if self.form == "ipo" and self.gap_weight > 0:
            raise ValueError("form 'ipo' has no gap_weight; take form 'sigmoid'")

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """Returns the log-ratio to the anchor, then the log-prob where `sft_coef` is above 0: [B, K] each."""
        return (*super().compare(forward_outputs), *([forward_outputs.trained.log_prob()] if self.sft_coef > 0 else []))

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        better, worse = self.pair_rows(batch)
        paths = self.of_samples(compared[0], batch)
        margin = paths[better] - paths[worse]
        values = self.value(margin, batch.scores[better] - batch.scores[worse])
        if self.sft_coef > 0:
            is_there = batch.weight > 0
            total = torch.where(is_there, compared[1], torch.zeros_like(compared[1])).sum(1)
            values = values - self.sft_coef * (total / is_there.sum(1).clamp(min=1))[better]
        is_right = (margin > 0).to(margin.dtype) + 0.5 * (margin == 0).to(margin.dtype)
        metrics = {
            "margin": self.of_groups(self.beta * margin, better, batch),
            "chosen": self.of_groups(self.beta * paths[better].detach(), better, batch),
            "rejected": self.of_groups(self.beta * paths[worse].detach(), better, batch),
            "accuracy": self.of_groups(is_right, better, batch, empty=0.5),
        }
        return self.of_groups(values, better, batch), metrics

    def value(self, margin: Tensor, gap: Tensor) -> Tensor:
        """Returns the terms [N] of pairs, of the margins m [N] and the reward differences `gap` [N], above 0."""
        if self.form == "ipo":
            return (margin - 1 / (2 * self.beta)).square()
        logit = self.beta * margin
        if self.gap_weight > 0:
            logit = logit * (1 - self.gap_weight * torch.expm1(-self.gap_rate * gap))
        if self.offset != "none":
            logit = logit - self.offset_scale * (gap.log() if self.offset == "log_reward_gap" else gap)
        right, wrong, noise = -logsigmoid(logit), -logsigmoid(-logit), self.label_smoothing
        if self.form == "robust":
            return ((1 - noise) * right - noise * wrong) / (1 - 2 * noise)
        return (1 - noise) * right + noise * wrong
