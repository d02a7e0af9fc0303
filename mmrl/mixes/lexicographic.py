"""The first reward decides; the next one only where that one is tied."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.data import Scores
from mmrl.mixes._mix import Plain


@dataclass(frozen=True)
class Lexicographic(Plain):
    """R = (members of the group that are worse + half of those that are equal) / (n - 1), in [0, 1].

    Of two samples that one is better which is better in the first reward of `order` in which they differ. Two values
    are the same where they fall into the same bin of width `tolerance` (0: only equal ones). Rewards are called by
    their labels; all that count must be in the order, and their weights say no more than that. An only valid member
    of a group gets 0.5.

    Raises ValueError for a tolerance below 0, or an order that is not all rewards that count.
    """

    order: tuple[str, ...]
    tolerance: float = 0.0

    is_relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(f"tolerance must be at least 0, got {self.tolerance}")
        if not self.order or len(set(self.order)) != len(self.order):
            raise ValueError(f"order must name each reward once, got {list(self.order)}")

    @property
    def reads(self) -> tuple[str, ...]:
        return self.order

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        for name in self.order:
            if name not in ranges:
                raise ValueError(f"mix 'lexicographic': there is no reward {name!r}; known are {', '.join(ranges)}")
        if lacking := [name for name in ranges if name not in self.order]:
            raise ValueError(f"mix 'lexicographic': the order lacks {', '.join(lacking)}; give it weight 0 to watch it")

    def __call__(self, scores: Scores) -> Tensor:
        """[B] float32; 0 for invalid samples."""
        columns = [scores.names.index(name) for name in self.order]
        values = torch.where(scores.valid[:, None], scores.values[:, columns].double(), 0.0)
        if self.tolerance > 0:
            values = _bin(values, self.tolerance)
        # [B] place of each sample among all: unique rows come in lexicographic order
        place = values.unique(dim=0, return_inverse=True)[1]
        rows = scores.valid.nonzero()[:, 0]
        group, size = (torch.unique(scores.group[rows], return_inverse=True, return_counts=True)[n] for n in (1, 2))
        # equal pairs of group and place are neighbours, in order: each knows where its run begins and how long it is
        pair, length = torch.unique(
            torch.stack([group, place[rows]], 1), dim=0, return_inverse=True, return_counts=True
        )[1:]
        before = (length.cumsum(0) - length)[pair] - (size.cumsum(0) - size)[group]
        others = size[group] - 1
        beaten = (before + (length[pair] - 1) / 2) / others.clamp(min=1)
        shares = torch.zeros(len(values))
        shares[rows] = torch.where(others > 0, beaten, 0.5)
        return shares


def _bin(values: Tensor, width: float) -> Tensor:
    """The number of the bin of each value; its lower edge is in it, also where float32 holds it as a little less."""
    places = values / width
    edges = places.round()
    return torch.where((places - edges).abs() <= 1e-6 * edges.abs().clamp(min=1), edges, places.floor())
