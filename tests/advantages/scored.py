"""Scores for tests of advantages: rewards of samples in groups, and decisions that no two of them share."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from mmrl.core.data import Paths, Scores


def scored(
    reward: Sequence[float], group: Sequence[int] | None = None, controls: Sequence[int] = (), **changes: Any
) -> Scores:
    """One reward `r` for each sample, in one group if not said; those that are NaN, and controls, are not valid."""
    size = len(reward)
    values = torch.tensor(reward, dtype=torch.float32)
    is_control = torch.tensor([row in controls for row in range(size)], dtype=torch.bool)
    made = Scores(
        values=values[:, None],
        names=("r",),
        weights=(1.0,),
        valid=~values.isnan() & ~is_control,
        group=torch.tensor([0] * size if group is None else group),
        episode=torch.arange(size),
        turn=torch.zeros(size, dtype=torch.int64),
        is_control=is_control,
    )
    return Scores(**{**vars(made), **changes})


def decided(*lengths: int, **facts: Sequence[Sequence[float]]) -> Paths:
    """Decisions of samples that share none; a fact is a row of numbers for each sample."""
    width = max(lengths, default=0)
    is_there = torch.arange(width) < torch.tensor(lengths, dtype=torch.int64)[:, None]
    known = {
        name: torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float32)
        for name, rows in facts.items()
    }
    return Paths(torch.where(is_there, is_there.flatten().cumsum(0).view_as(is_there) - 1, -1), known)


NAN = math.nan
