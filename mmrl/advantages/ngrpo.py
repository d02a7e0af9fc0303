"""Advantages of groups with a virtual best member: a group that fails as a whole gets negative advantages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration

from .base.wrapper import Wrapper, with_totals
from .grpo import Grpo


@dataclass(frozen=True)
class Ngrpo(Wrapper):
    """The inner advantage of groups that have `virtual` further members with the reward `best`.

    Nan et al. 2025, "NGRPO: Negative-enhanced Group Relative Policy Optimization", arXiv 2509.18851, section 3.1: mean
    and std run over the rewards and one virtual reward, the highest possible, so that a group of failures gets less
    than 0 instead of 0, and a group of successes stays at 0. `mmrl check` compares `best` with the largest total that
    the run's rewards, weights and mix can give. The inner advantage is `grpo`; the paper's code
    divides by n - 1 (`inner: {name: grpo, is_unbiased: true, epsilon: 1.0e-6, clip: null}`). The paper's other
    half, clip ranges by the sign of the advantage, is `clip_low` (below 0) and `clip_high` (above 0) of the loss. With
    `virtual: 0` this is the inner advantage.

    A virtual member has no decisions: inner advantages that weigh samples by their decisions, such as `opo` and `tree`,
    would leave it out.

    Raises ValueError for `virtual` below 0, and an inner advantage that is not of totals alone.
    """

    inner: Advantage = field(default_factory=Grpo)  # the section of the advantage with virtual members
    # The virtual member's reward: the largest total that the rewards, their weights and the mix can give.
    best: float = 1.0
    virtual: Annotated[int, Field(ge=0)] = 1  # virtual members of each group; 0: the inner advantage

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_more_than_totals()
        if self.virtual and self.declaration.weighs_by_length:
            raise ValueError("inner weighs samples by their decisions, of which a virtual member has none; use 'grpo'")

    @property
    def declaration(self) -> AdvantageDeclaration:
        """The declaration: with a virtual member, groups with equal rewards learn, unless these are the best."""
        inner = super().declaration
        smallest = max(1, inner.min_group_size - self.virtual)
        return replace(inner, min_group_size=smallest, compares_with="best" if self.virtual else inner.compares_with)

    def check_best(self, best: Mapping[str, tuple[float, float]]) -> None:
        """Raises ValueError unless `self.best` is the largest total at both ends of the weights' schedules."""
        for what, ends in best.items() if self.virtual else ():
            if not all(map(math.isfinite, ends)):
                raise ValueError(
                    f"there is no largest {what} to compare with: a reward without an upper end needs clip_range "
                    "around it, and mixes that compare the samples of a group have none"
                )
            if not math.isclose(*ends, rel_tol=1e-5, abs_tol=1e-9):
                raise ValueError(f"the largest {what} changes from {ends[0]:g} to {ends[1]:g}, and best is fixed")
            if not math.isclose(self.best, ends[0], rel_tol=1e-5, abs_tol=1e-9):
                raise ValueError(
                    f"best is {self.best:g}, and the largest {what} that can be is {ends[0]:g}, with which a group of "
                    f"successes would not stay at 0; set best to {ends[0]:g}"
                )
        super().check_best(best)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], or [B, K] where the inner advantage is one of decisions."""
        advantages: Tensor = self.inner(*self.inner_batch(scores, paths))
        return advantages[: len(scores.group)]

    def inner_batch(self, scores: Scores, paths: Paths | None) -> tuple[Scores, Paths | None]:
        """Returns the samples, then the virtual members of all groups."""
        first = _first_of_each(scores.group, scores.valid).repeat(self.virtual)
        totals = with_totals(scores, scores.total)
        virtual = totals.select(first)
        virtual = replace(
            virtual,
            values=torch.full_like(virtual.values, self.best),
            valid=torch.ones_like(virtual.valid),
            is_control=torch.zeros_like(virtual.is_control),
            episode=torch.arange(len(first)),
        )
        if paths is not None:  # a virtual member has no decisions
            none = replace(paths[first], edge=torch.full_like(paths.edge[first], -1))
            paths = Paths.join([paths, none])
        return Scores.join([totals, virtual]), paths


def _first_of_each(group: Tensor, valid: Tensor) -> Tensor:
    """Returns the row [n] of the first valid member of each group [B]; groups without a valid member have none."""
    return torch.tensor(
        [int(((group == one) & valid).nonzero()[0]) for one in group[valid].unique()], dtype=torch.int64
    )
