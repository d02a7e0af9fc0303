"""Advantages with a bonus for tokens drawn from an uncertain distribution."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration

from .base.wrapper import Wrapper
from .grpo import Grpo


@dataclass(frozen=True)
class EntropyAdvantage(Wrapper):
    """A_t = A + min(alpha H_t, |A| / kappa), A the inner advantage, H_t the entropy (nats) of token t when drawn.

    Cheng et al. 2025, "Reasoning with Exploration: An Entropy Perspective", arXiv 2506.14758, equations 5-6, alpha and
    kappa of its runs with GRPO. The bonus has no gradient; it is never below 0, and with a `kappa` above 1 it never
    turns the sign of an advantage. Where the inner advantage is 0, it stays 0; with `alpha: 0` all is the inner one.

    Raises ValueError for an `alpha` below 0 and a `kappa` of 1 and less.
    """

    inner: Advantage = field(default_factory=Grpo)
    alpha: Annotated[float, Field(ge=0)] = 0.4
    kappa: Annotated[float, Field(gt=1)] = 2.0

    @property
    def declaration(self) -> AdvantageDeclaration:
        inner = super().declaration
        return replace(inner, requires=inner.requires | {"entropy"}, is_per_decision=True)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B, K] float32, 0 where there is no decision; without `paths` the inner advantages."""
        inner = self.inner(scores, paths)
        if paths is None:
            return inner
        is_decision = paths.edge >= 0
        plain = (inner if inner.dim() == 2 else inner[:, None]).expand(paths.edge.shape)
        entropy = paths.facts["entropy"] if is_decision.any() else torch.zeros_like(plain)
        shaped = plain + torch.minimum(self.alpha * entropy, plain.abs() / self.kappa)
        return torch.where(is_decision, shaped, 0.0)
