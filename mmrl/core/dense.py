"""Numbers of dense rewards: one for each decision of a sample, NaN where there is none."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# Granularities of dense rewards: each denoising step, each stretch of tokens, each token.
DENSE = ("step", "segment", "token")


def widened(numbers: Tensor, width: int) -> Tensor:
    """[B, width] of numbers [B, K]: what is missing is NaN; what is too much is cut."""
    return torch.nn.functional.pad(numbers, (0, width - numbers.shape[1]), value=torch.nan)


def join_dense(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """By their names, the numbers [B_i, K_i] of all parts in order: [sum of B_i, largest K_i]."""
    joined = {}
    for name in parts[0]:
        width = max(part[name].shape[1] for part in parts)
        joined[name] = torch.cat([widened(part[name], width) for part in parts])
    return joined


def decision_mask(counts: Tensor, width: int | None = None) -> Tensor:
    """[B, K] bool: where samples with `counts` [B] decisions have one; K is the largest count, or `width`."""
    if width is None:
        width = int(counts.max()) if len(counts) else 0
    return torch.arange(width, device=counts.device) < counts[:, None]


def stray(numbers: Tensor, is_number: Tensor) -> int | None:
    """The first sample of numbers [B, K] with something else than 0 where `is_number` [B, K] says there is none."""
    rows = ((numbers != 0) & ~is_number).any(1).nonzero()[:, 0]
    return int(rows[0]) if len(rows) else None
