"""ReMax: the difference of a reward from that of the greedy answer to the same prompt."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_mean, group_sum


@dataclass(frozen=True)
class Remax:
    """A_i = R_i - R of the greedy answer to the same prompt, or the mean of several greedy answers.

    Li et al. 2023, "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language
    Models", arXiv 2310.10505, equation 3. The paper has one sample per prompt; here several share the greedy answer.
    The greedy answer is a control of the group, judged and never learned from: `greedy: true` of the sampler. A group
    with equal rewards learns, unless its greedy answer has the same reward; a group whose greedy answer could not be
    judged gets 0, and so do invalid samples. With a mix that compares within groups, the greedy answer is part of the
    comparison.
    """

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(
        min_group_size=1,
        compares_with="greedy",  # a control that the sampler must generate
    )

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        counts = torch.tensor([weight != 0 for weight in scores.weights])
        is_judged = scores.is_control & scores.values[:, counts].isfinite().all(1)
        total = replace(scores, valid=scores.valid | is_judged).total.double()
        greedy = group_mean(total, scores.group, is_judged)
        has_greedy = group_sum(is_judged.long(), scores.group) > 0
        return torch.where(scores.valid & has_greedy, total - greedy, 0.0).float()
