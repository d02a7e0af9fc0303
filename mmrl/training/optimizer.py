"""The optimizer of a run over its trained tensors, and its learning rate by iteration."""

import math

import torch

from mmrl.core.config import OptimizerSettings
from mmrl.core.weights import Weights
from mmrl.system.errors import ConfigError


def optimizer_of(settings: OptimizerSettings, weights: Weights) -> torch.optim.Optimizer:
    """Returns the optimizer: one parameter group where all tensors have the same rate, else one for each, in their
    order.

    Raises ConfigError where the optimizer's package is not installed.
    """
    if len(set(weights.rate_scale.values())) <= 1:
        groups = [{"params": list(weights.parameters.values()), "rate_scale": next(iter(weights.rate_scale.values()))}]
    else:
        groups = [{"params": [p], "rate_scale": weights.rate_scale[name]} for name, p in weights.parameters.items()]
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=settings.betas[0], weight_decay=decay)
    if settings.name == "adamw8bit":
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise ConfigError("optimizer.name 'adamw8bit' needs bitsandbytes: pip install 'mmrl[quantise]'") from error
        return AdamW8bit(groups, lr=rate, betas=settings.betas, eps=settings.epsilon, weight_decay=decay)  # type: ignore[no-any-return]
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return kind(groups, lr=rate, betas=settings.betas, eps=settings.epsilon, weight_decay=decay)


def learning_rate(settings: OptimizerSettings, iteration: int, total: int) -> float:
    """Returns the rate of `iteration` (from 0): linear warm-up, then constant, or linear or cosine to 0."""
    if iteration < settings.warmup:
        return settings.learning_rate * (iteration + 1) / settings.warmup
    if settings.schedule == "constant":
        return settings.learning_rate
    done = (iteration - settings.warmup) / max(1, total - settings.warmup)
    share = 1 - done if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return settings.learning_rate * share
