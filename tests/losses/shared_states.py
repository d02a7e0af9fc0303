"""Four choices that a linear network makes from one state, and losses of them."""

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.forward_outputs import GaussianDecisions
from mmrl.core.numerics import Reduction
from mmrl.losses.grpo import Grpo

D, STD = 3, 0.4  # latent elements, standard deviation of the step
ADVANTAGES = torch.tensor([[1.5], [-1.0], [0.25], [-0.75]], dtype=torch.float64)


def normals(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


STATE, WEIGHT, OLD_WEIGHT = normals(0, D), normals(1, D, D), normals(1, D, D) + 0.03 * normals(2, D, D)
SAMPLE = (STATE @ OLD_WEIGHT + STD * normals(3, 4, D)).float().double()  # 4 choices from one state


def shared_call(weight: Tensor, reduction: Reduction = "mean") -> GaussianDecisions:
    """Returns the outputs of a linear network called once for the four members at STATE."""
    entry, std = torch.arange(4)[:, None], torch.tensor([STD], dtype=torch.float64)
    return GaussianDecisions((STATE @ weight)[None], std, SAMPLE, torch.zeros(4, dtype=torch.int64), entry, reduction)


def batch_of(advantages: Tensor) -> LossBatch:
    rows = torch.zeros(len(advantages), dtype=torch.int64)
    return LossBatch(advantages, torch.ones_like(advantages), rows, advantages[:, 0])


def mean_terms(loss: Grpo, forward_outputs: OutputsByWeights, advantages: Tensor = ADVANTAGES) -> Tensor:
    """Returns the mean over decisions."""
    return loss(loss.measure(forward_outputs), batch_of(advantages)).terms.mean()


def gradient_of(value: Tensor, weight: Tensor) -> Tensor:
    return torch.autograd.grad(value, weight)[0]
