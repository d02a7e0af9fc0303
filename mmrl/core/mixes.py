"""What mixes share: the rewards that count, and what most of them say of themselves."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.core.data import Scores


class Plain:
    """A mix that looks at every reward that counts, whatever its range, and at no other sample."""

    is_relative: ClassVar[bool] = False
    is_of_advantages: ClassVar[bool] = False

    @property
    def required_rewards(self) -> tuple[str, ...]:
        return ()

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Any rewards will do."""


def counted(scores: Scores) -> tuple[Tensor, Tensor]:
    """The rewards that count [B, n] in float64, and their weights [n]; entries of invalid samples are 0."""
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
