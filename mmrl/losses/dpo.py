"""DPO: preferences between samples of a group, for tokens and for denoising steps."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.core.contracts import LossBatch, OutputsByWeights

from .base.log_ratios import Anchor
from .base.paths import PairLoss, Pairs
from .base.settings import check_above, check_at_least, check_one_of

Form = Literal["sigmoid", "robust", "ipo"]
Offset = Literal["none", "reward_gap", "log_reward_gap"]


@dataclass(frozen=True)
class Dpo(PairLoss):
    """-log sigmoid(beta m), m = log-ratio to the reference of the better sample less that of the worse one.

    Rafailov et al. 2023, "Direct Preference Optimization", arXiv 2305.18290, eq. 7. On groups drawn from the policy
    itself it is online DPO (Dong et al. 2024, "RLHF Workflow", arXiv 2405.07863: the best against the worst). With
    `path: mean` it is the length-normalised form. log 2 for the reference itself.
      label_smoothing e (cDPO): -(1 - e) log sigmoid(beta m) - e log sigmoid(-beta m).
      form robust (rDPO, Chowdhury et al. 2024, arXiv 2403.00409), right on average when a share e of the labels
          is wrong: (-(1 - e) log sigmoid(beta m) + e log sigmoid(-beta m)) / (1 - 2 e).
      form ipo (Azar et al. 2023, arXiv 2310.12036, eq. 17): (m - 1 / (2 beta))^2; TRL takes it with `path: mean`.
      offset (ODPO, Amini et al. 2024, arXiv 2402.10571): beta m - offset_scale * (reward difference, or its
          logarithm) in place of beta m.
      sft_coef (RPO, Liu et al. 2024, arXiv 2405.16436; Pang et al. 2024, arXiv 2404.19733): adds
          -sft_coef * log-prob of the better sample / its number of decisions.

    Raises ValueError for settings out of range.
    """

    beta: float = 0.1
    form: Form = "sigmoid"
    label_smoothing: float = 0.0  # share of wrong labels
    offset: Offset = "none"
    offset_scale: float = 1.0
    sft_coef: float = 0.0
    pairs: Pairs = "extremes"
    anchor: Anchor = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_above("beta", self.beta)
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing must be in [0, 0.5), got {self.label_smoothing}")
        for name in ("offset_scale", "sft_coef"):
            check_at_least(name, getattr(self, name))
        for name, allowed in (("form", get_args(Form)), ("offset", get_args(Offset))):
            check_one_of(name, getattr(self, name), allowed)
        if self.form == "ipo" and (self.label_smoothing > 0 or self.offset != "none"):
            raise ValueError("form 'ipo' has neither label_smoothing nor an offset; take form 'sigmoid' for these")

    def compare(self, forward_outputs: OutputsByWeights) -> tuple[Tensor, ...]:
        """The log-ratio to the anchor, and the log-prob where the better sample's counts."""
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
            "accuracy": self.of_groups(is_right, better, batch, empty=0.5),
        }
        return self.of_groups(values, better, batch), metrics

    def value(self, margin: Tensor, gap: Tensor) -> Tensor:
        """[N] of pairs: margin [N] is m, gap [N] > 0 the reward difference."""
        if self.form == "ipo":
            return (margin - 1 / (2 * self.beta)).square()
        logit = self.beta * margin
        if self.offset != "none":
            logit = logit - self.offset_scale * (gap.log() if self.offset == "log_reward_gap" else gap)
        right, wrong, noise = -logsigmoid(logit), -logsigmoid(-logit), self.label_smoothing
        if self.form == "robust":
            return ((1 - noise) * right - noise * wrong) / (1 - 2 * noise)
        return (1 - noise) * right + noise * wrong
