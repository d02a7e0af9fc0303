"""The first reward decides; the next one only where that one is tied."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmrl.core.data import Scores
from mmrl.core.mixes import Plain

Ties = Literal["margin", "bins"]
Unit = Literal["reward", "std"]


@dataclass(frozen=True)
class Lexicographic(Plain):
    """R = (members of the group that are worse + half of those that are equal) / (n - 1), in [0, 1].

    Of two samples that one is better which is better in the first reward of `order` in which they differ. Rewards are
    called by their labels; all that count must be in the order, and their weights say no more than that. An only valid
    member of a group gets 0.5.

    `tolerance`, one for all rewards or one for each of the order, says what is the same (0: only equal values):
      margin  two values that differ by at most the tolerance, as in HERON (Bukharin et al. 2023, "Deep Reinforcement
              Learning from Hierarchical Preference Design", arXiv 2309.02632, and its code). One sample may then be
              better than a second one and that better than a third, which is as good as the first
      bins    two values in the same bin of width `tolerance`: each sample has one place in the group
    Its `unit` is that of the reward, or `std`: the standard deviation (n - 1) of the reward over all valid samples of
    an iteration, as in HERON's code.

    Raises ValueError for a tolerance below 0 or of another number of rewards, or an order that is not all rewards that
    count.
    """

    order: tuple[str, ...]
    tolerance: float | tuple[float, ...] = 0.0
    ties: Ties = "margin"
    unit: Unit = "reward"

    is_relative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.order or len(set(self.order)) != len(self.order):
            raise ValueError(f"order must name each reward once, got {list(self.order)}")
        if not all(math.isfinite(one) and one >= 0 for one in self._tolerances):
            raise ValueError(f"tolerance must be at least 0, got {self.tolerance}")
        if len(self._tolerances) != len(self.order):
            raise ValueError(
                f"tolerance must be one number, or one for each of {len(self.order)} rewards, got {self.tolerance}"
            )

    @property
    def _tolerances(self) -> tuple[float, ...]:
        """One for each reward of the order."""
        return self.tolerance if isinstance(self.tolerance, tuple) else (self.tolerance,) * len(self.order)

    @property
    def required_rewards(self) -> tuple[str, ...]:
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
        widths = torch.tensor(self._tolerances, dtype=torch.float64)  # [n]
        if self.unit == "std" and scores.valid.sum() > 1:
            widths = widths * values[scores.valid].std(0)
        if self.ties == "margin" and bool((widths > 0).any()):
            return _beaten(values, widths, scores)
        return _ranked(torch.where(widths > 0, _bin(values, widths), values), scores)


def _beaten(values: Tensor, widths: Tensor, scores: Scores) -> Tensor:
    """[B] the shares of each group that its members beat, by pairs of values [B, n] that differ by more than [n]."""
    shares = torch.zeros(len(values))
    for name in scores.group[scores.valid].unique():
        rows = ((scores.group == name) & scores.valid).nonzero()[:, 0]
        own = values[rows]
        gap = own[:, None] - own  # [g, g, n]: above 0 where the first is better
        # float32 may hold a difference of just the tolerance as a little more
        slack = torch.where(widths > 0, 1e-6 * torch.maximum(own[:, None].abs(), own.abs()), 0.0)
        verdict = torch.where(gap.abs() > widths + slack, gap.sign(), 0.0)
        first = (verdict != 0).double().argmax(2, keepdim=True)  # 0 where all are ties, and so is that
        won = verdict.gather(2, first)[..., 0]  # [g, g]: 1, 0 or -1
        others = len(rows) - 1
        shares[rows] = ((won.sum(1) / others + 1) / 2).float() if others else torch.full((1,), 0.5)
    return shares


def _ranked(values: Tensor, scores: Scores) -> Tensor:
    """[B] the same where only equal values [B, n] are ties."""
    # [B] place of each sample among all: unique rows come in lexicographic order
    place = values.unique(dim=0, return_inverse=True)[1]
    rows = scores.valid.nonzero()[:, 0]
    group, size = (torch.unique(scores.group[rows], return_inverse=True, return_counts=True)[n] for n in (1, 2))
    # equal pairs of group and place are neighbours, in order: each knows where its run begins and how long it is
    pair, length = torch.unique(torch.stack([group, place[rows]], 1), dim=0, return_inverse=True, return_counts=True)[
        1:
    ]
    before = (length.cumsum(0) - length)[pair] - (size.cumsum(0) - size)[group]
    others = size[group] - 1
    beaten = (before + (length[pair] - 1) / 2) / others.clamp(min=1)
    shares = torch.zeros(len(values))
    shares[rows] = torch.where(others > 0, beaten, 0.5)
    return shares


def _bin(values: Tensor, widths: Tensor) -> Tensor:
    """The number of the bin of each value [B, n], of widths [n]; its lower edge is in it, also where float32 holds it
    as a little less."""
    places = values / widths
    edges = places.round()
    return torch.where((places - edges).abs() <= 1e-6 * edges.abs().clamp(min=1), edges, places.floor())
