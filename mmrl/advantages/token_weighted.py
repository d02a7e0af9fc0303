"""Advantages weighted by how far apart the answers of a group are at each token."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_max

from .base.wrapper import Wrapper, of_decisions
from .grpo import Grpo


@dataclass(frozen=True)
class TokenWeighted(Wrapper):
    """A_t = w_t A, w_t = 1 + (max_weight - 1) (D_t - min D) / (max D - min D), A the inner advantage.

    D_t is the spread of the group at token t: how far apart its answers are in what they expect next
    (`mmrl.modalities.tokens.spread`); the smallest and the largest are those of the group's valid samples. Dang et al.
    2025, "Reinforcing Video Reasoning with Focused Thinking" (TW-GRPO), arXiv 2505.24718, as its code has it, whose
    `alpha` is `max_weight`. The authors weigh the term of each token in GRPO's loss. Weights are above 0 and have no
    gradient, so weighing the advantage is the same, but for a penalty of the loss (`kl_coef`), which theirs would weigh
    too and whose weight they set to 0. They divide by the tokens of all answers (`loss.normalise: decision`).

    With `max_weight: 1` and where the spread is the same at all tokens, this is the inner advantage.

    Raises ValueError for settings out of range.
    """

    inner: Advantage = field(default_factory=Grpo)  # the section of the advantage that is weighted
    # The weight of the token at which the answers of a group are farthest apart; that of the others is at least 1.
    max_weight: Annotated[float, Field(ge=1)] = 1.7

    @property
    def declaration(self) -> AdvantageDeclaration:
        inner = super().declaration
        return replace(inner, requires=inner.requires | {"spread"}, is_per_decision=True, requires_single_answers=True)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32, 0 without a decision; without `paths` the inner advantages."""
        inner = self.inner(scores, paths)
        if paths is None:
            return inner
        plain, is_decision = of_decisions(inner, paths)
        counted = is_decision & scores.valid[:, None]
        weight = self._weights(paths.facts["spread"], counted, scores.group) if counted.any() else plain
        return torch.where(is_decision, weight * plain, 0.0)

    def _weights(self, spread: Tensor, counted: Tensor, group: Tensor) -> Tensor:
        """Returns the weights [B, K] of spreads [B, K], of which those `counted` [B, K] span the range."""
        largest = group_max(torch.where(counted, spread, -math.inf).amax(1), group)[:, None]
        smallest = -group_max(torch.where(counted, -spread, -math.inf).amax(1), group)[:, None]
        span = largest - smallest
        share = torch.where(span > 0, (spread - smallest) / span, 0.0)
        return 1 + (self.max_weight - 1) * share
