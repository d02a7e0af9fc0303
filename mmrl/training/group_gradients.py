"""Whether the gradients of groups agree: their noise, measured in little memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from mmrl.core.keys import generator
from mmrl.training.processes import Processes

SAMPLED = 2**24  # values of all gradients that are compared, at most, or one of each tensor


@dataclass
class GroupGradients:
    """Sums over the gradients of this process's groups.

    Of gradients with more than SAMPLED values some are compared, at places that depend on the seed and the tensor's
    name alone: of a large model the sum of all would not fit beside the gradient. A square over a tensor is then that
    of its sampled values times its size over their number, which is right on average. Where all values fit, all are
    compared.
    """

    parameters: Mapping[str, Tensor]  # their `grad` is what is added
    seed: int
    squares: list[float] = field(default_factory=list, init=False)  # |g_i|^2 of each group
    _total: dict[str, Tensor] = field(default_factory=dict, init=False)  # [count] float32 of each tensor
    _reached: dict[str, Tensor] = field(default_factory=dict, init=False)  # whether one of all its values is not 0

    def add(self) -> None:
        """Adds the gradient of a group; one that is not finite is left out (float16, until its scale is right)."""
        gradients = {name: one.grad for name, one in self.parameters.items() if one.grad is not None}
        sampled = {name: self._sampled(name, one) for name, one in gradients.items()}
        square = float(sum(one.square().sum() * self._weight(name) for name, one in sampled.items()))
        if not math.isfinite(square):
            return
        self.squares.append(square)
        for name, values in sampled.items():
            is_reached = gradients[name].any()
            if name in self._total:
                self._total[name] += values
                self._reached[name] |= is_reached
            else:
                self._total[name], self._reached[name] = values.clone(), is_reached

    def sum_square(self, processes: Processes) -> float:
        """Returns |sum of g_i|^2 over the groups of all processes. Every process must call it."""
        square = 0.0
        for name, parameter in self.parameters.items():
            own = self._total.get(name)
            values = torch.zeros(self._count(name), device=parameter.device) if own is None else own
            square += float(processes.sum(values).square().sum()) * self._weight(name)
        return square

    def reached(self) -> list[str]:
        """Returns the names of the tensors that have a gradient in a group of this process."""
        return [name for name, one in self._reached.items() if one]

    def _sampled(self, name: str, gradient: Tensor) -> Tensor:
        """Returns the values [count] that are compared, in float32: all, or some drawn with replacement."""
        values, count = gradient.flatten(), self._count(name)
        if count == len(values):
            return values.float()
        places = torch.randint(len(values), (count,), generator=generator(self.seed, "gradient", name))
        return values[places.to(values.device)].float()

    @cached_property
    def _whole(self) -> int:
        return sum(one.numel() for one in self.parameters.values())

    def _count(self, name: str) -> int:
        own = self.parameters[name].numel()
        return own if self._whole <= SAMPLED else min(own, max(1, own * SAMPLED // self._whole))

    def _weight(self, name: str) -> float:
        return self.parameters[name].numel() / max(1, self._count(name))


def signal_to_noise(sum_square: float, squares: Sequence[float]) -> float | None:
    """Returns |mean|^2 over the variance of the mean, of the gradients of n groups; 1 is expected of pure noise.

    The mean is sum / n; its variance is that of a group's gradient, over all its elements, divided by n. With B groups
    in a step the signal is (ratio - 1) B / n times the noise (McCandlish et al. 2018, "An Empirical Model of
    Large-Batch Training", arXiv 1812.06162, appendix A.1).

    Args:
        sum_square: |sum of g_i|^2. squares: |g_i|^2 of each group. Returns None where all gradients are equal.
    """
    mean_square, variance = _mean_and_variance(sum_square, squares)
    return mean_square / (variance / len(squares)) if variance > 1e-12 * mean_square else None


def noise_scale(sum_square: float, squares: Sequence[float]) -> float | None:
    """Returns how many groups a step needs so that noise is as large as the gradient; None where it is all noise.

    tr(Sigma) / |G|^2 (there, equation 2.9): the variance of a group's gradient over the square of the true gradient,
    which is |mean|^2 less its variance. Arguments as for `signal_to_noise`.
    """
    mean_square, variance = _mean_and_variance(sum_square, squares)
    signal = mean_square - variance / len(squares)
    return variance / signal if signal > 1e-12 * mean_square else None


def _mean_and_variance(sum_square: float, squares: Sequence[float]) -> tuple[float, float]:
    """Returns the square of the mean gradient, and the variance of a group's gradient over all its elements."""
    n = len(squares)
    mean_square = sum_square / n**2
    return mean_square, (sum(squares) - n * mean_square) / (n - 1)


def evenness(squares: Sequence[float]) -> float:
    """Returns how many groups of n count in the sum of |g_i|^2, as a share: (sum of x)^2 / (n * sum of x^2).

    1 where all gradients are of one size, 1 / n where one group has all; 0 where there is no gradient. Where few groups
    count, their agreement says little.
    """
    scale = max(squares)
    if scale == 0:
        return 0.0
    parts = [one / scale for one in squares]
    return sum(parts) ** 2 / (len(parts) * sum(part**2 for part in parts))
