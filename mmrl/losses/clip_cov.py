"""Clip-Cov: GRPO without a gradient for a few of the tokens that would lower the entropy most."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import LossBatch

from .base.covariance import covariance, selected, share_of
from .grpo import Grpo


@dataclass(frozen=True)
class ClipCov(Grpo):
    """GRPO's term, 0 for tokens chosen at random among those with cov_low < c < cov_high.

    Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", arXiv 2505.22617,
    section 4.2: c = (log_prob - mean)(A - mean) is a token's part in the covariance of log-prob and advantage, by which
    an update lowers the entropy; means are over all tokens of the optimizer step. `share` of all tokens are chosen, at
    least one, and no more than lie between the bounds. Log-probs are those before the rollout's first update; the
    authors' code takes the present ones and leaves out tokens that are clipped by their ratio, which is the same at the
    first update. Their code sets both clip ranges to 1. Bounds and share are theirs for Qwen2.5 7B.

    Raises ValueError for settings out of range.
    """

    clip_low: Annotated[float, Field(gt=0, le=1)] = 1.0  # the ratio is clipped to 1 - clip_low ... 1 + clip_high
    clip_high: Annotated[float, Field(gt=0)] = 1.0  # see `clip_low`
    # The tokens without a gradient, of all tokens of the step; 0: none (GRPO).
    share: Annotated[float, Field(ge=0, le=1)] = 2e-4
    cov_low: float = 1.0  # tokens of a covariance above this may be chosen, in units of nats times advantage
    cov_high: float = 5.0  # ... and below this

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cov_low < self.cov_high:
            raise ValueError(f"cov_low must be below cov_high, got {self.cov_low} and {self.cov_high}")

    def select(self, log_prob: Tensor, advantages: Tensor, weight: Tensor, source: torch.Generator) -> Tensor:
        """Returns the tokens [N] (bool) without a gradient."""
        size = covariance(log_prob, advantages, weight)
        chosen = torch.zeros(len(size), dtype=torch.bool)
        if self.share > 0:
            between = ((size > self.cov_low) & (size < self.cov_high)).nonzero().squeeze(1)
            order = torch.randperm(len(between), generator=source)
            chosen[between[order[: share_of(len(size), self.share)]]] = True
        return chosen

    def terms(self, compared: tuple[Tensor, ...], batch: LossBatch) -> tuple[Tensor, dict[str, Tensor]]:
        terms, metrics = super().terms(compared, batch)
        dropped = selected(batch)
        return terms.masked_fill(dropped, 0.0), metrics | {"selected_fraction": dropped.to(terms.dtype)}
