"""Tensors in the CPU's memory, from which a GPU reads them fast; how much memory is free, and how much is taken."""

import os
import resource
from pathlib import Path

import torch
from torch import Tensor

_MEMINFO = Path("/proc/meminfo")
_OWN = Path("/proc/self/statm")


def on_host(tensor: Tensor) -> Tensor:
    """Returns a copy of a tensor in the CPU's memory; of a GPU's tensor, with locked pages, which it reads fast."""
    held = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return held.copy_(tensor)


def free_bytes(device: torch.device) -> int:
    """Returns the bytes that this process can still take, of a CUDA GPU's memory or of the CPU's under Linux.

    Raises ValueError for other devices and systems.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu" or not _MEMINFO.is_file():
        raise ValueError(f"the free memory of {device.type} is not known here")
    lines = _MEMINFO.read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])


def resident_bytes() -> int:
    """Returns the bytes of the CPU's memory that this process holds; where there is no /proc, the most it held."""
    if _OWN.is_file():
        return int(_OWN.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on a Mac
