"""Maximum-likelihood advantages: rewards relative to the mean of their group."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.contracts import RunError
from mmrl.core.data import Paths, Scores
from mmrl.core.numerics import group_mean

from .dr_grpo import DrGrpo


@dataclass(frozen=True)
class Maxrl(Checked):
    """A = (R - mean) / (mean + epsilon) of the group.

    Tajwar et al. 2026, "Maximum Likelihood Reinforcement Learning", arXiv 2602.02710; epsilon of the authors' code. For
    rewards of 0 and 1 its expected gradient is that of the log of the chance of a success, up to the order that the
    group size allows: all of pass@1, pass@2, ... at once, hard prompts counting more. A group without a success gets 0,
    as does a group with equal rewards. The scale of rewards does not matter, but their zero does: they must not be
    below 0. Invalid samples enter no mean and get 0.

    Raises ValueError for an epsilon below 0, and RunError for rewards below 0.
    """

    epsilon: Annotated[float, Field(ge=0)] = 1e-6  # added to the mean

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError where a reward that counts may be below 0."""
        for name, (low, _) in ranges.items():
            if low < 0 or weights[name] < 0:
                raise ValueError(
                    f"rewards are divided by their mean and must not be below 0, but {name!r} goes down to {low:g} "
                    f"with a weight of {weights[name]:g}; wrap it in clip_range, or use 'grpo'"
                )

    def __call__(self, scores: Scores, paths: Paths | None = None) -> Tensor:
        """Returns the advantages [B], float32."""
        total = scores.total.double()
        if (lowest := total[scores.valid].min().item() if scores.valid.any() else 0.0) < 0:
            raise RunError(
                f"advantage 'maxrl' divides by the mean reward and needs rewards of at least 0, got {lowest:g}"
            )
        mean = group_mean(total, scores.group, scores.valid)
        centred = DrGrpo()(scores, paths).double()
        return torch.where(mean > 0, centred / torch.where(mean > 0, mean + self.epsilon, 1.0), 0.0).float()
