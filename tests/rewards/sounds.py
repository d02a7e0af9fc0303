"""Random sounds for tests of rewards that hear."""

import random

import torch
from torch import Tensor


def sounds(source: random.Random, count: int, samples: int) -> Tensor:
    """[count, 2, samples]: tones, noise, and tones in noise, of any loudness."""
    generator = torch.Generator().manual_seed(source.getrandbits(32))
    pitch = 0.01 + 0.3 * torch.rand(count, 1, 1, generator=generator)
    tone = torch.sin(pitch * torch.arange(samples)).expand(count, 2, samples)
    noise = 2 * torch.rand(count, 2, samples, generator=generator) - 1
    share = (torch.arange(count) % 3 / 2)[:, None, None]
    loudness = torch.rand(count, 1, 1, generator=generator)
    return loudness * (share * tone + (1 - share) * noise)
