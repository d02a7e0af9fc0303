"""Advantages with a bonus for good samples that the policy finds less likely than the others of their group (XRPO)."""

from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_mean

from .base.wrapper import Wrapper, of_decisions
from .grpo import Grpo


@dataclass(frozen=True)
class Novelty(Wrapper):
    """A + min(max(scale (1 - eta), 0), cap A) where the inner advantage A > 0; eta = exp(s - mean of s over the group).

    Bamba et al. 2025, "XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation", arXiv 2510.06672,
    novelty-guided advantage sharpening. s is the mean log-prob of a sample's decisions at sampling: a sample that is as
    likely as its group gets no bonus, a rarer one up to `scale`, and none more than `cap` times its advantage. Only
    good samples gain: those with an advantage above 0. The bonus has no gradient.

    Samples that could not be judged enter no mean. A sample without decisions counts as s = 0 and has no advantage. The
    formula was read in a public transcription of the paper; its values of `scale` and `cap` could not be verified.

    Raises ValueError for settings out of range.
    """

    inner: Advantage = field(default_factory=Grpo)  # the section of the advantage that gets the bonus
    scale: Annotated[float, Field(ge=0)] = 1.0  # the largest bonus, the paper's lambda; 0: the inner advantage; ours
    cap: Annotated[float, Field(ge=0)] = 0.5  # the largest share of the advantage, the paper's kappa; ours

    @property
    def declaration(self) -> AdvantageDeclaration:
        inner = super().declaration
        return replace(inner, requires=inner.requires | {"log_prob"}, is_per_decision=True)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K], float32, 0 without a decision; without `paths` the inner advantages."""
        inner = self.inner(scores, paths)
        if paths is None:
            return inner
        plain, is_decision = of_decisions(inner, paths)
        if not is_decision.any():
            return torch.zeros_like(plain)
        count = is_decision.sum(1)
        mean = (paths.facts["log_prob"].double() * is_decision).sum(1) / count.clamp(min=1)  # [B], s
        eta = (mean - group_mean(mean, scores.group, scores.valid & (count > 0))).exp()
        bonus = (self.scale * (1 - eta)).clamp(min=0).to(plain.dtype)[:, None]
        sharpened = torch.where(plain > 0, plain + torch.minimum(bonus, self.cap * plain), plain)
        return torch.where(is_decision, sharpened, 0.0)
