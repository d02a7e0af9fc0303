"""Denoising outputs by hand for the tests of losses on the forward process, in float64."""

from typing import Any

import torch
from torch import Tensor

from mmrl.core.contracts import LossBatch, OutputsByWeights
from mmrl.core.data import Outputs, Prompt, Rollout
from mmrl.core.forward_outputs import Denoising
from mmrl.core.keys import GroupKey

B, K, SHAPE = 4, 2, (2, 3)  # samples, draws of each, a latent; d = 6
GROUP = torch.tensor([0, 0, 1, 1])
SIGMA = torch.tensor([0.2, 0.9, 0.5, 0.7, 0.35, 0.6, 0.15, 0.8], dtype=torch.float64)
ENTRY = torch.arange(B * K).view(B, K)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CLEAN, NOISE = normal(0, B * K, *SHAPE), normal(1, B * K, *SHAPE)
TARGET = NOISE - CLEAN
NOISY = (1 - SIGMA).view(-1, 1, 1) * CLEAN + SIGMA.view(-1, 1, 1) * NOISE
VELOCITY, OLD, REFERENCE, AVERAGED = (normal(seed, B * K, *SHAPE) for seed in (2, 3, 4, 5))


def denoising(velocity: Tensor) -> Denoising:
    return Denoising(velocity, TARGET, NOISY, SIGMA, ENTRY)


def forward_outputs(velocity: Tensor, old: Tensor = OLD, reference: Tensor = REFERENCE) -> OutputsByWeights:
    return OutputsByWeights(denoising(velocity), denoising(old), denoising(reference), denoising(AVERAGED))


def batch(advantages: Tensor, scores: Tensor | None = None, weight: Tensor | None = None) -> LossBatch:
    """Returns a batch with advantages [B] or [B, K], whose scores are by default the advantages."""
    wide = (advantages[:, None] if advantages.dim() == 1 else advantages).expand(B, K).double()
    own = wide[:, 0] if scores is None else scores
    return LossBatch(wide, torch.ones(B, K, dtype=torch.float64) if weight is None else weight.double(), GROUP, own)


def total(loss: Any, velocity: Tensor, of: LossBatch, **others: Tensor) -> Tensor:
    """Returns the loss as the core does: coefficients times terms, over the denominator."""
    coefficients, denominator = loss.coefficients(of)
    terms = loss(loss.measure(forward_outputs(velocity, **others)), of).terms
    value: Tensor = (coefficients * terms).sum() / denominator
    return value


def gradient(loss: Any, velocity: Tensor, of: LossBatch, **others: Tensor) -> Tensor:
    velocity = velocity.clone().requires_grad_()
    return torch.autograd.grad(total(loss, velocity, of, **others), velocity)[0]


def matching(velocity: Tensor) -> Tensor:
    """Returns mean (v - v*)^2 [B, K], one entry at a time."""
    return torch.stack([torch.stack([((velocity[n] - TARGET[n]) ** 2).mean() for n in row]) for row in ENTRY.tolist()])


def noise_matching(velocity: Tensor) -> Tensor:
    """Returns the mean squared error [B, K] of the implied noise, from x and v alone."""
    implied = NOISY + (1 - SIGMA).view(-1, 1, 1) * velocity
    return ((implied - NOISE) ** 2).mean((1, 2))[ENTRY]


def rollout(draws: list[int], sizes: list[int], levels: tuple[float, ...] = ()) -> Rollout:
    """Returns groups of these sizes, interleaved: sample by sample, not group by group."""
    prompt = torch.tensor([p for member in range(max(sizes)) for p, size in enumerate(sizes) if member < size])
    size, zeros = len(prompt), torch.zeros(len(prompt), dtype=torch.int64)
    keys = tuple(GroupKey(7, 3, draw) for draw in draws)
    prompts = tuple(Prompt(str(draw)) for draw in draws)
    outputs = Outputs(images=torch.zeros(size, 3, 1, 1))
    group = torch.tensor(draws)[prompt]
    return Rollout(
        prompts, keys, prompt, group, zeros, zeros, outputs, (), None, 0, levels=dict.fromkeys(draws, levels)
    )
