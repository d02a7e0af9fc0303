"""NFT on answers: supervised learning from right answers, and from wrong ones by an implicit negative policy."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch
from mmrl.core.declarations import LossDeclaration
from mmrl.core.numerics import Normalisation

from .base.ratio import RatioLoss, ratio_of


@dataclass(frozen=True)
class NftTokens(RatioLoss):
    """The term -w (r log rho + (1 - r) log max_v((1 - p rho) / (1 - p), epsilon)) of each decision.

    Chen et al. 2025, "Bridging Supervised Learning and Reinforcement Learning in Math Reasoning" (NFT), arXiv
    2505.18116, eq. 10. rho is the decision's likelihood over the old one, r the sample's reward, 1 for a right answer
    and 0 for a wrong one, p the accuracy of the group, which is its mean reward, and max_v(x, epsilon) the larger of
    the two with the gradient of x. The old policy mixes a policy of right answers, the trained one, and one of wrong
    answers, (old - p trained) / (1 - p), of which wrong answers are likely.

    Where rho is 1 (strictly on-policy) the gradient is that of Dr. GRPO for the weight w = 1 - p of a prompt, and that
    of GRPO for w = sqrt((1 - p) / p), whatever epsilon (propositions 4.1 and 4.2; for rewards between 0 and 1 the
    first holds, too). Off-policy no ratio is clipped: a wrong answer is pushed by p rho / (1 - p), divided by the
    likelihood of the implicit policy, so that it pushes less where it became unlikely.

    Totals must lie in [0, 1], and the advantage must be `dr_grpo`, off which p is read: advantages are those of whole
    groups, also where a step holds a part of one. A group with an accuracy of 0 or 1 has no gradient.
    `negative_weight: 0` is the paper's rejection fine-tuning (RFT), which it runs with `prompt_weight: none`.

    Raises ValueError for settings out of range.
    """

    # Below this the likelihood of an answer under the implicit policy is cut; nearer to 0 wrong answers push harder.
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1.0
    # What a prompt counts, by its accuracy p: 1 - p (`dr_grpo`), sqrt((1 - p) / p) (`grpo`), or 1 (`none`).
    prompt_weight: Literal["dr_grpo", "grpo", "none"] = "dr_grpo"
    negative_weight: Annotated[float, Field(ge=0)] = 1.0  # weight of the terms of wrong answers
    # What counts alike: each decision, sample or group; `constant` divides each sample's sum by a number.
    normalise: Normalisation = "decision"

    @property
    def declaration(self) -> LossDeclaration:
        return replace(super().declaration, requires_group_mean=True)

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio, reward = compared[0], batch.scores[:, None]
        accuracy = reward - batch.advantages
        is_mixed = (accuracy > 0) & (accuracy < 1)
        p = torch.where(is_mixed, accuracy, torch.full_like(accuracy, 0.5))
        reward = reward.clamp(0, 1)
        ratio = ratio_of(log_ratio)
        implicit = (1 - p * ratio) / (1 - p)
        negative = implicit + (implicit.clamp(min=self.epsilon) - implicit).detach()
        likelihood = reward * log_ratio + self.negative_weight * (1 - reward) * negative.log()
        terms = torch.where(is_mixed, -self._weight(p) * likelihood, torch.zeros_like(likelihood))
        is_cut = (reward < 1) & (implicit < self.epsilon)
        return terms, {"ratio": ratio, "accuracy": accuracy, "clip_fraction": is_cut.to(ratio.dtype)}

    def _weight(self, p: Tensor) -> Tensor:
        """Returns what the prompt of each decision counts, by its accuracy."""
        weights = {"none": torch.ones_like(p), "dr_grpo": 1 - p, "grpo": ((1 - p) / p).sqrt()}
        return weights[self.prompt_weight]
