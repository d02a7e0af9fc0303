"""The numbers of dense rewards: one for each decision of a sample, NaN where the sample has no decision."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# The granularities of dense rewards: each denoising step, each segment of tokens, each token.
DENSE = ("step", "segment", "token")


def widened(numbers: Tensor, width: int) -> Tensor:
    """Returns numbers [B, K] as [B, width], filled with NaN or cut at the end of each row."""
    return torch.nn.functional.pad(numbers, (0, width - numbers.shape[1]), value=torch.nan)


def join_dense(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the numbers [B_i, K_i] of all parts, in order, as one [sum of B_i, largest K_i] for each name."""
    joined = {}
    for name in parts[0]:
        width = max(part[name].shape[1] for part in parts)
        joined[name] = torch.cat([widened(part[name], width) for part in parts])
    return joined


def decision_mask(counts: Tensor, width: int | None = None) -> Tensor:
    """Returns [B, K] bool: where samples with `counts` [B] decisions have one; K is the largest count, or `width`."""
    if width is None:
        width = int(counts.max()) if len(counts) else 0
    return torch.arange(width, device=counts.device) < counts[:, None]


def stray(numbers: Tensor, is_number: Tensor) -> int | None:
    """Returns the first sample with a number [B, K] that is not 0 where `is_number` [B, K] is False; None: no such."""
    rows = ((numbers != 0) & ~is_number).any(1).nonzero()[:, 0]
    return int(rows[0]) if len(rows) else None
