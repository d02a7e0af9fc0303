"""Whether the server uses the part of an adapter that reads images, which it leaves out in silence without a flag."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.core.contracts import ConfigError

TRIED_ANSWERS, TRIED_TOKENS = 4, 16
_NOISE = 0.1  # standard deviation; an adapter of zeros, as at the start, would change nothing


@dataclass(frozen=True)
class Trial:
    """A few tokens that the server drew."""

    log_prob: Tensor  # [N] as the server gives them
    own: Callable[[], Tensor]  # [N] by the weights in place here when it is called


@torch.no_grad()
def check_tower(tower: Sequence[Tensor], try_server: Callable[[], Trial]) -> None:
    """Moves the adapter's tensors of the vision tower for one trial; they are put back bit for bit.

    Raises ConfigError where the server's log-probs are not nearer to those with the moved tensors than to those
    without. `tower` may be empty: then there is nothing that could be left out.
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
            "with --enable-tower-connector-lora, or adapt the language model alone (modality.vision: frozen)"
        )
