"""ReMax: how much better than the greedy answer to its prompt a sample is."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.data import Paths, Scores
from mmrl.core.declarations import AdvantageDeclaration
from mmrl.core.numerics import group_mean, group_sum


@dataclass(frozen=True)
class Remax:
    """A_i = R_i - R of the greedy answer to the same prompt, the mean where there are several.

    Li et al. 2023, "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language
    Models", arXiv 2310.10505, equation 3. The paper has one sample per prompt; several share their greedy answer. It is
    a control of the group, judged and never learned from: `greedy: true` of the sampler. A group with equal
    rewards learns, unless its greedy answer has the same; a group whose greedy answer could not be judged gets 0, and
    so do invalid samples. With a mix that compares within groups the greedy answer is one of those compared.
    """

    declaration: ClassVar[AdvantageDeclaration] = AdvantageDeclaration(
        min_group_size=1,
        compares_with="greedy",  # controls that the sampler must draw
    )

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """[B] float32."""
        counts = torch.tensor([weight != 0 for weight in scores.weights])
        is_judged = scores.is_control & scores.values[:, counts].isfinite().all(1)
        total = replace(scores, valid=scores.valid | is_judged).total.double()
        greedy = group_mean(total, scores.group, is_judged)
        has_greedy = group_sum(is_judged.long(), scores.group) > 0
        return torch.where(scores.valid & has_greedy, total - greedy, 0.0).float()
