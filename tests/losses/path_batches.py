"""Batches for losses on whole samples, in float64, and the loss of a step as the core computes it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.core.contracts import Loss, LossBatch


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_of(
    scores: Sequence[float], group: Sequence[int] | None = None, weight: Tensor | None = None, num_decisions: int = 1
) -> LossBatch:
    """Returns samples, by default of one group and of equal lengths, whose advantages are the scores."""
    total = torch.tensor(scores, dtype=torch.float64)
    weight = torch.ones(len(total), num_decisions, dtype=torch.float64) if weight is None else weight.double()
    numbers = torch.tensor([0] * len(total) if group is None else group)
    return LossBatch(total[:, None].expand_as(weight), weight, numbers, total)


def column(values: Sequence[float]) -> Tensor:
    """Returns log-ratios [B, 1] of samples with one decision, which require a gradient."""
    return torch.tensor(values, dtype=torch.float64)[:, None].requires_grad_()


def step_loss(loss: Loss, measures: tuple[Tensor, ...], batch: LossBatch) -> Tensor:
    """Returns the sum of coefficient * term over the denominator."""
    coefficients, denominator = loss.coefficients(batch)
    return (coefficients * loss(measures, batch).terms).sum() / denominator


def step_gradient(loss: Loss, measures: tuple[Tensor, ...], batch: LossBatch) -> Tensor:
    """Returns the gradient of `step_loss` by the first measure."""
    return torch.autograd.grad(step_loss(loss, measures, batch), measures[0], retain_graph=True)[0]
