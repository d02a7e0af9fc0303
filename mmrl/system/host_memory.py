"""Tensors in the CPU's memory, from which a GPU reads them fast."""

import torch
from torch import Tensor


def on_host(tensor: Tensor) -> Tensor:
    """Returns a copy of a tensor in the CPU's memory; of a GPU's tensor, with locked pages, which it reads fast."""
    held = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return held.copy_(tensor)
