"""What tests of losses on likelihood ratios share: batches of ragged answers, and gradients by their log-ratios."""

from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch

ADVANTAGES = torch.tensor([1.5, -1.0, 0.25, -0.75], dtype=torch.float64)  # of 4 answers
LENGTHS = [3, 1, 2, 3]
INSIDE = torch.arange(3) < torch.tensor(LENGTHS)[:, None]  # [4, 3]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ragged(advantages: Tensor = ADVANTAGES, inside: Tensor = INSIDE) -> LossBatch:
    """One group; advantages [B] or [B, K]."""
    table = advantages if advantages.dim() == 2 else advantages[:, None].expand(inside.shape)
    rows = torch.zeros(len(table), dtype=torch.int64)
    return LossBatch(table, inside.to(table.dtype), rows, table[:, 0])


def log_ratios(scale: float = 0.5, inside: Tensor = INSIDE) -> Tensor:
    return scale * normal(3, *inside.shape) * inside


def value(loss: Any, measures: tuple[Tensor, ...], batch: LossBatch) -> Tensor:
    """What the core makes of the terms: their weighted sum over the denominator."""
    coefficients, denominator = loss.coefficients(batch)
    total: Tensor = (coefficients * loss(measures, batch).terms).sum() / denominator
    return total


def gradient(loss: Any, log_ratio: Tensor, batch: LossBatch, *facts: Tensor) -> Tensor:
    """[B, K] of the loss by the log-ratios, which is that by the log-probs."""
    measured = log_ratio.clone().requires_grad_()
    return torch.autograd.grad(value(loss, (measured, *facts), batch), measured)[0]
