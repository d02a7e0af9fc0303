"""KL-Cov: the policy gradient with a penalty on the tokens that would lower the entropy most."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.covariance import covariance, selected, share_of
from .base.ratio import RatioLoss, ratio_of


@dataclass(frozen=True)
class KlCov(RatioLoss):
    """The term -A rho of each token, plus cov_coef |log rho| for the tokens of largest covariance.

    Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617,
    section 4.2: `share` of the tokens of the optimizer step, at least one, are those with the largest
    (log_prob - mean)(A - mean); `clip_cov` says which log-probs and means. The paper writes a KL to the policy that
    sampled; its size of the log-ratio, and the share and weight for Qwen2.5 7B (2e-4 for 32B), are those of the
    authors' code. There is no clip. At the first update of a rollout the penalty has no gradient.

    Raises ValueError for settings out of range.
    """

    # The penalised tokens, of all tokens of the step; 0: none, the policy gradient alone.
    share: Annotated[float, Field(ge=0, le=1)] = 2e-3
    cov_coef: Annotated[float, Field(ge=0)] = 1.0  # weight of the size of a penalised token's log-ratio

    def select(self, log_prob: Tensor, advantages: Tensor, weight: Tensor, source: torch.Generator) -> Tensor:
        """Returns the penalised tokens [N] (bool)."""
        size = covariance(log_prob, advantages, weight)
        chosen = torch.zeros(len(size), dtype=torch.bool)
        if self.share > 0:
            chosen[size.topk(share_of(len(size), self.share)).indices] = True
        return chosen

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        (log_ratio,), penalised = compared, selected(batch).to(compared[0].dtype)
        ratio = ratio_of(log_ratio)
        terms = -batch.advantages * ratio + self.cov_coef * penalised * log_ratio.abs()
        return terms, {"ratio": ratio, "selected_fraction": penalised}
