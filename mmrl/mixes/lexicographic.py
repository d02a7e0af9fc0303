"""The share of its group that a sample beats: the first reward decides, the next reward where the first is tied."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmrl.core.checked import Checked
from mmrl.core.data import Scores
from mmrl.core.declarations import MixDeclaration
from mmrl.core.mixes import Plain

Ties = Literal["margin", "bins"]
Unit = Literal["reward", "std"]
Tolerance = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Lexicographic(Plain, Checked):
    """R = (members of the group that are worse + half of those that are equal) / (n - 1), in [0, 1].

    Of two samples, the better sample is better in the first reward of `order` in which the two differ. All rewards that
    count must be in the order, and the size of their weights does not matter. An only valid member of a group gets 0.5.

    Two values of a reward are tied
      margin  if they differ by at most the tolerance, as in HERON (Bukharin et al. 2023, "Deep Reinforcement Learning
              from Hierarchical Preference Design", arXiv 2309.02632, and its code). Such ties are not transitive: A may
              beat B, and B beat C, while A and C are tied
      bins    if they are in the same bin of width `tolerance`: each sample has one place in the group
    The unit of the tolerance is that of the reward, or `std`: the standard deviation (n - 1) of the reward over all
    valid samples of an iteration, as in HERON's code.

    Raises ValueError for a tolerance below 0 or of another number of rewards, or an order that is not all rewards that
    count.
    """

    order: tuple[str, ...]  # the labels of all rewards that count, the reward that decides first
    # How far two tied values may be apart: one number, or one for each reward of the order; 0: only equal values.
    tolerance: Tolerance | tuple[Tolerance, ...] = 0.0
    # `margin`: values that differ by at most the tolerance are tied (HERON); `bins`: values in the same bin.
    ties: Ties = "margin"
    # Of the tolerance: the `reward`'s own, or `std`, its standard deviation over the iteration (HERON's code).
    unit: Unit = "reward"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.order or len(set(self.order)) != len(self.order):
            raise ValueError(f"order must name each reward once, got {list(self.order)}")
        if not all(map(math.isfinite, self._tolerances)):
            raise ValueError(f"tolerance must be finite, got {self.tolerance}")
        if len(self._tolerances) != len(self.order):
            raise ValueError(
                f"tolerance must be one number, or one for each of {len(self.order)} rewards, got {self.tolerance}"
            )

    @property
    def _tolerances(self) -> tuple[float, ...]:
        """The tolerances of the rewards, in their order."""
        return self.tolerance if isinstance(self.tolerance, tuple) else (self.tolerance,) * len(self.order)

    @property
    def declaration(self) -> MixDeclaration:
        return MixDeclaration(is_relative=True, requires_rewards=frozenset(self.order))

    def check(self, ranges: Mapping[str, tuple[float, float]], weights: Mapping[str, float]) -> None:
        """Raises ValueError for a reward of the order that is unknown, and for one that counts outside of the order."""
        for name in self.order:
            if name not in ranges:
                raise ValueError(f"mix 'lexicographic': there is no reward {name!r}; known are {', '.join(ranges)}")
        if lacking := [name for name in ranges if name not in self.order]:
            raise ValueError(f"mix 'lexicographic': the order lacks {', '.join(lacking)}; give it weight 0 to watch it")

    def __call__(self, scores: Scores) -> Tensor:
        """Returns the mixed rewards [B], float32; 0 for invalid samples."""
        columns = [scores.names.index(name) for name in self.order]
        values = torch.where(scores.valid[:, None], scores.values[:, columns].double(), 0.0)
        widths = torch.tensor(self._tolerances, dtype=torch.float64)  # [n]
        if self.unit == "std" and scores.valid.sum() > 1:
            widths = widths * values[scores.valid].std(0)
        if self.ties == "margin" and bool((widths > 0).any()):
            return _beaten(values, widths, scores)
        return _ranked(torch.where(widths > 0, _bin(values, widths), values), scores)


def _beaten(values: Tensor, widths: Tensor, scores: Scores) -> Tensor:
    """Returns the share [B] of its group that each sample beats, by values [B, n] that differ by more than [n]."""
    shares = torch.zeros(len(values))
    for name in scores.group[scores.valid].unique():
        rows = ((scores.group == name) & scores.valid).nonzero()[:, 0]
        own = values[rows]
        gap = own[:, None] - own  # [g, g, n]: above 0 where the first is better
        # float32 may hold a difference of just the tolerance as a little more
        slack = torch.where(widths > 0, 1e-6 * torch.maximum(own[:, None].abs(), own.abs()), 0.0)
        verdict = torch.where(gap.abs() > widths + slack, gap.sign(), 0.0)
        first = (verdict != 0).double().argmax(2, keepdim=True)  # place 0 where all are ties, with verdict 0
        won = verdict.gather(2, first)[..., 0]  # [g, g]: 1, 0 or -1
        others = len(rows) - 1
        shares[rows] = ((won.sum(1) / others + 1) / 2).float() if others else torch.full((1,), 0.5)
    return shares


def _ranked(values: Tensor, scores: Scores) -> Tensor:
    """Returns the share [B] of its group that each sample beats, where only equal values [B, n] are ties."""
    # [B] place of each sample among all: unique rows come in lexicographic order
    place = values.unique(dim=0, return_inverse=True)[1]
    rows = scores.valid.nonzero()[:, 0]
    group, size = (torch.unique(scores.group[rows], return_inverse=True, return_counts=True)[n] for n in (1, 2))
    # equal pairs of group and place are adjacent, in order: each pair has the start and the length of its run
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
    """Returns the number of the bin of each value [B, n], of widths [n].

    A bin includes its lower edge, also where float32 rounds the edge to a little less.
    """
    places = values / widths
    edges = places.round()
    return torch.where((places - edges).abs() <= 1e-6 * edges.abs().clamp(min=1), edges, places.floor())
