"""The harmonic mean of the rewards, which stays near the smallest of them: no reward makes up for another."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.mixes import Plain, counted, refuse_negative


@dataclass(frozen=True)
class HarmonicMean(Plain):
    """R = sum of w_k / sum of (w_k / r_k), for rewards of at least 0 and weights above 0; 0 where one of them is 0.

    A reward whose scheduled weight is 0 is left out; the number is 0 where all are left out.
    """

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError where a reward or its weight may be below 0."""
        refuse_negative("harmonic_mean", ranges, weights)

    def __call__(self, scores: Scores) -> Tensor:
        """Returns the mixed rewards [B], float32."""
        values, weights = counted(scores)
        is_above = (values > 0).all(1) & (weights.sum() > 0)
        safe = torch.where(is_above[:, None], values, 1.0)
        return torch.where(is_above, weights.sum() / (weights / safe).sum(1), 0.0).float()
