"""A small network that judges latents and the hashed words of a prompt."""

import math
from typing import Any

import torch
from torch import Tensor, nn


class LatentNetwork(nn.Module):
    """Three convolutions on latents and their coordinates, modulated by words, and a head of one number."""

    def __init__(self, shape: tuple[int, ...], channels: int, words: int) -> None:
        """Makes the network of latents of a shape ([L, C] or [C, ...]) and of so many hashed words."""
        super().__init__()
        self.shape, self.is_row = shape, len(shape) == 2
        dimensions = len(shape) - 1
        kinds: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
        sizes = (shape[-1] if self.is_row else shape[0]) + dimensions, channels, channels
        self.convolutions = nn.ModuleList(
            kinds[dimensions](size, channels, 3, stride=stride, padding=1)
            for size, stride in zip(sizes, (1, 2, 2), strict=True)
        )
        self.modulation = nn.Linear(words, 3 * 2 * channels)
        self.head = nn.Sequential(nn.Linear(2 * channels, channels), nn.SiLU(), nn.Linear(channels, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Returns the values [n] of flat latents and words, [n, D]."""
        count = math.prod(self.shape)
        states = features[:, :count].unflatten(1, self.shape)
        states = states.transpose(1, 2) if self.is_row else states
        axes = [torch.linspace(-1, 1, length, device=states.device) for length in states.shape[2:]]
        places = torch.stack(torch.meshgrid(*axes, indexing="ij"))  # [dimensions, ...]
        states = torch.cat([states, places.expand(len(states), *places.shape)], 1)
        modulations = self.modulation(features[:, count:]).unflatten(1, (3, 2, -1))  # [n, 3, 2, channels]
        for number, convolution in enumerate(self.convolutions):
            states = convolution(states)
            scale, shift = (part.unflatten(1, (-1, *[1] * len(axes))) for part in modulations[:, number].unbind(1))
            states = nn.functional.silu(states * (1 + scale) + shift)
        flat = states.flatten(2)
        values: Tensor = self.head(torch.cat([flat.mean(2), flat.amax(2)], 1))
        return values[:, 0]
