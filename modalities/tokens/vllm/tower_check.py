"""The check that the server uses an adapter on the vision tower, which it ignores silently without a flag."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

TRIED_ANSWERS, TRIED_TOKENS = 4, 16
_NOISE = 0.1  # standard deviation; an adapter of zeros, as at the start, would change nothing


@dataclass(frozen=True)
class Trial:
    """Some tokens that the server sampled, with its log-probs and our own."""

    log_prob: Tensor  # [N] by the server
    own: Callable[[], Tensor]  # [N] by the weights in place here at the call


@torch.no_grad()
def check_tower(tower: Sequence[Tensor], try_server: Callable[[], Trial]) -> None:
    """Changes the adapter's tensors of the vision tower for one trial, and restores them bit for bit.

    Raises ConfigError where the server's log-probs are not nearer to our log-probs with the changed tensors than to
    those without. With an empty `tower` there is nothing to check.
    """
    if not tower:
        return
    before = [tensor.clone() for tensor in tower]
    try:
        for number, tensor in enumerate(tower):
            noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number))
            tensor.add_(_NOISE * noise.to(tensor))
        trial = try_server()
        moved = trial.own()
    finally:
        for tensor, old in zip(tower, before, strict=True):
            tensor.copy_(old)
    with_tower, without = (float((trial.log_prob - own).abs().mean()) for own in (moved, trial.own()))
    if not with_tower < without:
        raise ConfigError(
            "engine: the vLLM server leaves out the adapter's part that reads images: its log-probs are "
            f"{with_tower:.2g} nats from this run's with that part, and {without:.2g} from those without; start it "
            "with --enable-tower-connector-lora; where it has that, it uses the part wrongly for prompts as these, so "
            "adapt the language model alone (modality.vision: frozen)"
        )
