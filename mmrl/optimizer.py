"""The optimizer of a run over its trained tensors."""

import torch

from mmrl.config import OptimizerSettings
from mmrl.errors import ConfigError
from mmrl.weights import Weights


def optimizer_of(settings: OptimizerSettings, weights: Weights) -> torch.optim.Optimizer:
    """One parameter group where all tensors learn at the same rate; else one for each tensor, in their order."""
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
