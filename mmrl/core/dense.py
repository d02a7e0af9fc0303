"""The numbers of dense rewards: one for each decision of a sample, NaN where the sample has no decision."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# The granularities of dense rewards: each denoising step, each segment of tokens, each token.
DENSE = ("step", "segment", "token")


def widened(numbers: Tensor, width: int) -> Tensor:
    """Returns numbers [B, K] as [B, width], filled with NaN or cut at the end of each row."""
    return torch.nn.functional.pad(numbers, (0, width - numbers.shape[1]), value=torch.nan)


def stacked(tables: Sequence[Tensor]) -> Tensor:
    """Returns tables [B_i, K_i], in order, as one [sum of B_i, largest K_i], filled with NaN."""
    width = max(table.shape[1] for table in tables)
    return torch.cat([widened(table, width) for table in tables])


def join_dense(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the numbers [B_i, K_i] of all parts, in order, as one [sum of B_i, largest K_i] for each name."""
    return {name: stacked([part[name] for part in parts]) for name in parts[0]}


def decision_mask(counts: Tensor, width: int | None = None) -> Tensor:
    """Returns [B, K] bool: where samples with `counts` [B] decisions have one; K is the largest count, or `width`."""
    if width is None:
        width = int(counts.max()) if len(counts) else 0
    return torch.arange(width, device=counts.device) < counts[:, None]


def stray(numbers: Tensor, is_number: Tensor) -> int | None:
    """Returns the first sample with a number [B, K] that is not 0 where `is_number` [B, K] is False; None: no such."""
    rows = ((numbers != 0) & ~is_number).any(1).nonzero()[:, 0]
    return int(rows[0]) if len(rows) else None
