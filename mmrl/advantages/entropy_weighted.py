"""Rewards shaped by entropy before they are compared: for each token (GTPO), or for each answer (GRPO-S)."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.contracts import Advantage
from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_mean, group_numbers, group_sum

from .base.wrapper import Wrapper
from .grpo import Grpo


@dataclass(frozen=True)
class EntropyWeighted(Wrapper):
    """The inner advantage of R + entropy_weight s n w, with s = 1 for good answers and -1 for bad ones.

    Tan et al. 2025, "GTPO and GRPO-S", arXiv 2508.04349, equations 3 and 5 for tokens. With level "token", w is the
    token's share in the entropy of its position, H / sum of H, over the n good answers of the group that reach the
    position; for bad answers it is the share in 1 / H, so that confident mistakes cost more. All tokens of the group
    are then compared with each other. With level "sequence", H is the mean entropy of an answer's tokens, n the number
    of good (or bad) answers, and answers are compared. Entropies are those of sampling, in nats, and have no gradient.

    The paper's rewards are 1 and -1: give a reward of 1 and 0 the weight 2. The equations were not at hand but by two
    reimplementations, which normalise the tokens of good and of bad answers each
    among themselves (equation 6, `statistics: sides`). Right and wrong then no longer differ in the mean, so it is not
    the default.

    A group without a good or without a bad answer gets 0. With an entropy_weight of 0 this is the inner advantage,
    of tokens, or of samples.

    Raises ValueError for settings out of range, and for an inner advantage that reads more than totals.
    """

    inner: Advantage = field(default_factory=Grpo)  # the section of the advantage that compares the shaped rewards
    # What has a reward of its own and is compared: each `token` (GTPO), or each answer, the `sequence` (GRPO-S).
    level: Literal["token", "sequence"] = "token"
    # What is compared with each other: all tokens or answers of the `group`, or those of its good and of its bad
    # answers, the `sides`.
    statistics: Literal["group", "sides"] = "group"
    entropy_weight: Annotated[float, Field(ge=0)] = 0.1  # times the share of the entropy, whose mean over a side is 1
    # A sample with a total above this is a good one; `null`: above the mean of its group.
    positive_above: float | None = None
    epsilon: Annotated[float, Field(gt=0)] = 1e-6  # added to each entropy, in nats

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_more_than_totals()

    @property
    def declaration(self) -> AdvantageDeclaration:
        inner = super().declaration
        is_per_decision = inner.is_per_decision or self.level == "token"
        return replace(inner, requires=inner.requires | {"entropy"}, is_per_decision=is_per_decision)

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B, K] of tokens or [B] of samples, float32; without `paths` the inner advantages."""
        if paths is None:
            return self.inner(scores, paths)
        is_there = (paths.edge >= 0) & scores.valid[:, None]
        entropy = paths.facts["entropy"].double() if is_there.any() else torch.zeros(is_there.shape).double()
        if self.level == "sequence":
            length = is_there.sum(1, keepdim=True)
            entropy = torch.where(is_there, entropy, 0.0).sum(1, keepdim=True) / length.clamp(min=1)
            is_there = length > 0
        is_good, is_mixed = self._sides(scores)
        share = self._share(entropy, is_there, is_good, scores.group)
        total = torch.where(scores.valid, scores.total, 0.0).double()
        sign = torch.where(is_good, 1.0, -1.0)
        shaped = total[:, None] + self.entropy_weight * sign[:, None] * share
        rows, columns = (is_there & is_mixed[:, None]).nonzero().unbind(1)
        group = group_numbers(scores.group) * 2
        compared = group + is_good if self.statistics == "sides" else group
        result = torch.zeros(is_there.shape)
        result[rows, columns] = self.inner(_entries(shaped[rows, columns], compared[rows]), None)
        return result if self.level == "token" else result[:, 0]

    def _sides(self, scores: Scores) -> tuple[Tensor, Tensor]:
        """Returns the good samples, and the samples of groups with a good and a bad one: [B] bool each."""
        total = torch.where(scores.valid, scores.total, 0.0).double()
        bound = group_mean(total, scores.group, scores.valid) if self.positive_above is None else self.positive_above
        is_good, is_bad = scores.valid & (total > bound), scores.valid & (total <= bound)
        number = [group_sum(side.double(), scores.group) for side in (is_good, is_bad)]
        return is_good, (number[0] > 0) & (number[1] > 0)

    def _share(self, entropy: Tensor, is_there: Tensor, is_good: Tensor, group: Tensor) -> Tensor:
        """Returns n w [B, K]: the share in the (inverse) entropy of a position, with mean 1 over each side."""
        plain = entropy + self.epsilon
        part = torch.where(is_there, torch.where(is_good[:, None], plain, 1 / plain), 0.0)
        side = group_numbers(group) * 2 + is_good
        mean = group_sum(part, side) / group_sum(is_there.double(), side).clamp(min=1)
        return torch.where(is_there, part / torch.where(is_there, mean, 1.0), 0.0)


def _entries(reward: Tensor, group: Tensor) -> Scores:
    """Returns N rewards [N] as N valid samples of these groups [N]."""
    count = torch.arange(len(reward))
    return Scores(
        reward.float()[:, None], ("total",), (1.0,), torch.ones_like(count) > 0, group, count, torch.zeros_like(count)
    )
