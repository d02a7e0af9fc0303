"""Policies with faults that people's forks had, for tests/diagnosis/faults.py."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from mmrl.core.contracts import Placement
from mmrl.core.data import Rollout
from mmrl.core.forward_outputs import ForwardOutputs, GaussianDecisions, TokenDecisions
from mmrl.core.views import View
from mmrl.modalities.gui import Gui
from mmrl.modalities.sd3 import StableDiffusion3


def shifted(outputs: Any, by: Any) -> Any:
    """Returns decisions whose log-probs are off: of tokens in nats, of denoising steps in standard deviations."""
    if isinstance(outputs, TokenDecisions):
        return replace(outputs, values=torch.where(outputs.values != 0, outputs.values + by(outputs.values), 0.0))
    assert isinstance(outputs, GaussianDecisions)
    std = outputs.std.view(-1, *[1] * (outputs.mean.dim() - 1))
    return replace(outputs, mean=outputs.mean + std * by(outputs.mean))


@dataclass
class Dropping(Gui):
    """Evaluates with dropout, each time with another."""

    def forward(self, rollout: Rollout, view: View) -> TokenDecisions:
        return shifted(super().forward(rollout, view), lambda values: 0.1 * torch.randn_like(values))  # type: ignore[no-any-return]


@dataclass
class WithDropout(Gui):
    """Has a layer of dropout in training mode behind its network."""

    def prepare(self, placement: Placement) -> None:
        super().prepare(placement)
        dropout = nn.Dropout(0.05).train()

        def dropped(_network: nn.Module, _args: Any, output: Any) -> Any:
            output.last_hidden_state = dropout(output.last_hidden_state)
            return output

        (network,) = self.networks()
        network.register_module("planted", dropout)
        network.register_forward_hook(dropped)


def _up(outputs: TokenDecisions) -> TokenDecisions:
    return shifted(outputs, lambda values: torch.full_like(values, 0.1))  # type: ignore[no-any-return]


@dataclass
class SharesWrongly(Gui):
    """Evaluates answers that share their prompt to other log-probs."""

    def forward(self, rollout: Rollout, view: View) -> TokenDecisions:
        outputs = super().forward(rollout, view)
        return outputs if self.sharing_mode == "none" else _up(outputs)


@dataclass
class SampledOtherwise(StableDiffusion3):
    """Records other means than it samples by, as a rollout in another precision does."""

    def recorded(self, rollout: Rollout, view: View) -> ForwardOutputs:
        return shifted(super().recorded(rollout, view), lambda mean: 0.1 * torch.ones_like(mean))  # type: ignore[no-any-return]


@dataclass
class OtherReference(Gui):
    """Has another model for its reference."""

    def forward(self, rollout: Rollout, view: View) -> TokenDecisions:
        outputs = super().forward(rollout, view)
        if self.weights._placed != "reference":
            return outputs
        return shifted(outputs, lambda values: -0.2 * torch.ones_like(values))  # type: ignore[no-any-return]


@dataclass
class OtherReferenceOfImages(StableDiffusion3):
    """The same of images."""

    def forward(self, rollout: Rollout, view: View) -> ForwardOutputs:
        outputs = super().forward(rollout, view)
        if self.weights._placed != "reference":
            return outputs
        return shifted(outputs, lambda mean: 0.2 * torch.ones_like(mean))  # type: ignore[no-any-return]


@dataclass
class TrainsUnused(StableDiffusion3):
    """Trains tensors of its last block that nothing reads."""

    def freeze_unused(self, network: nn.Module) -> None:
        pass
