"""Where the large tensors of training live: which settings go together, and weights placed by them."""

import torch

from mmrl.core.config import MemorySettings, RunConfig
from mmrl.core.weights import Weights
from mmrl.system.errors import ConfigError


def check_memory(config: RunConfig) -> None:
    """Raises ConfigError for settings of `memory` and of the optimizer that do not go together."""
    memory, name = config.memory, config.optimizer.name
    if config.optimizer.fused and name == "adamw8bit":
        raise ConfigError("optimizer.fused is of torch's optimizers; adamw8bit has kernels of its own: leave it out")
    if memory.trained_weights == "bfloat16":
        if config.precision != "bfloat16":
            raise ConfigError(f"memory.trained_weights 'bfloat16' needs precision bfloat16, got {config.precision}")
        if config.modality.get("lora") is not None:
            raise ConfigError(
                "memory.trained_weights 'bfloat16' is for full training: the trained tensors of modality.lora are "
                "small, and stay float32"
            )
    if memory.optimizer == "host":
        if name == "adamw8bit":
            raise ConfigError(
                "memory.optimizer 'host' works with adamw, adam and sgd; adamw8bit keeps its blocks on the device"
            )
        if config.precision == "float16":
            raise ConfigError("memory.optimizer 'host' needs precision float32 or bfloat16: it knows no loss scale")
    if config.sharding == "full" and memory != MemorySettings():
        raise ConfigError("memory is for weights that every process holds whole; leave it out, or set sharding to none")


def place(memory: MemorySettings, weights: Weights) -> None:
    """Gives the weights masters, and their copies a place, as the settings say; before any copy is made."""
    is_on_host = memory.optimizer == "host"
    if is_on_host or memory.trained_weights == "bfloat16":
        dtype = torch.bfloat16 if memory.trained_weights == "bfloat16" else torch.float32
        weights.hold_masters(dtype, are_on_host=is_on_host)
    if memory.copies == "host":
        weights.keep_on_host()
