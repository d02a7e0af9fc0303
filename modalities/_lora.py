"""Low-rank adapters on a diffusers network, through peft."""

from dataclasses import dataclass
from typing import Any

from mmrl.contracts import ConfigError


@dataclass(frozen=True)
class Lora:
    """A low-rank adapter (Hu et al. 2021, arXiv 2106.09685); rank 32 and alpha 64 are Flow-GRPO's.

    `targets`: ends of the names of the adapted layers; None: the family's attention. `path`: a folder with an exported
    adapter to start from. Raises ValueError for settings out of range.
    """

    rank: int = 32
    alpha: int = 64
    targets: tuple[str, ...] | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha < 1 or self.targets == ():
            raise ValueError(f"lora needs rank, alpha >= 1 and targets, got {self.rank}, {self.alpha}, {self.targets}")

    def add_to(self, network: Any, default_targets: tuple[str, ...]) -> None:
        """Adds the adapter to a diffusers network in place and leaves only it trainable, in float32.

        Raises ConfigError where no layer fits the targets, or the folder holds no adapter for this network.
        """
        from peft import LoraConfig

        targets = list(self.targets or default_targets)
        try:
            if self.path is not None:
                network.load_lora_adapter(
                    self.path,
                    prefix="transformer",
                    adapter_name="default",
                    weight_name="pytorch_lora_weights.safetensors",
                )
            else:
                network.add_adapter(
                    LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=targets, init_lora_weights="gaussian")
                )
        except (ValueError, OSError, KeyError) as error:
            raise ConfigError(f"lora: {error}") from error
        for name, parameter in network.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.float()  # small updates would be lost in bf16
                parameter.requires_grad_(True)
