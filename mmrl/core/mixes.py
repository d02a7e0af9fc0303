"""The base of mixes, the rewards that count, and the refusal of negative rewards."""

from collections.abc import Mapping

import torch
from torch import Tensor

from mmrl.core.data import Scores


class Plain:
    """The base of mixes that accept rewards of any range and weight."""

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Accepts all rewards."""


def counted(scores: Scores) -> tuple[Tensor, Tensor]:
    """Returns the rewards that count [B, n] and their weights [n], in float64; 0 for invalid samples."""
    chosen = [column for column, weight in enumerate(scores.weights) if weight != 0]
    values = torch.where(scores.valid[:, None], scores.values[:, chosen].double(), 0.0)
    return values, torch.tensor([scores.weights[column] for column in chosen], dtype=torch.float64)


def refuse_negative(name: str, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
    """Raises ValueError where a reward or its weight may be below 0."""
    for reward, weight in weights.items():
        if weight < 0:
            raise ValueError(f"mix {name!r} needs weights above 0, got {weight:g} for {reward!r}")
    for reward, (low, _) in ranges.items():
        if low < 0:
            raise ValueError(
                f"mix {name!r} is for rewards that are never below 0, but {reward!r} goes down to {low:g}; "
                "wrap it in clip_range, or use another mix"
            )
