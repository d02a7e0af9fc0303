"""Advantages with a bonus for tokens that were sampled from an uncertain distribution."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration

from .base.wrapper import Wrapper, of_decisions
from .grpo import Grpo


@dataclass(frozen=True)
class EntropyAdvantage(Wrapper):
    """A_t = A + min(alpha H_t, |A| / kappa), A the inner advantage, H_t the entropy (nats) behind token t at sampling.

    Cheng et al. 2025, "Reasoning with Exploration: An Entropy Perspective", arXiv 2506.14758, equations 5-6, alpha and
    kappa of its runs with GRPO. The bonus has no gradient; it is never below 0, and with a `kappa` above 1 it never
    turns the sign of an advantage. Where the inner advantage is 0, the result is 0; `alpha: 0` changes nothing.

    Raises ValueError for settings out of range.
    """

    inner: Advantage = field(default_factory=Grpo)  # the section of the advantage that gets the bonus
    alpha: Annotated[float, Field(ge=0)] = 0.4  # times the entropy, in nats; 0: the inner advantage
    kappa: Annotated[float, Field(gt=1)] = 2.0  # the bonus is at most the advantage's size divided by kappa

    @property
    def declaration(self) -> AdvantageDeclaration:
        inner = super().declaration
        return replace(inner, requires=inner.requires | {"entropy"}, is_per_decision=True)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32, 0 without a decision; without `paths` the inner advantages."""
        inner = self.inner(scores, paths)
        if paths is None:
            return inner
        plain, is_decision = of_decisions(inner, paths)
        entropy = paths.facts["entropy"] if is_decision.any() else torch.zeros_like(plain)
        shaped = plain + torch.minimum(self.alpha * entropy, plain.abs() / self.kappa)
        return torch.where(is_decision, shaped, 0.0)
