"""The memory of a process in a phase of an iteration: the peak of a CUDA GPU, elsewhere the resident set."""

import torch

from mmrl.system.host_memory import resident_bytes

GIB = 2**30


def begin_phase(device: torch.device) -> None:
    """Begins a phase: a GPU's peak counts from now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def end_phase(device: torch.device) -> float:
    """Returns GiB: the peak of a GPU's tensors since the phase began, or what the process holds of the CPU's memory."""
    return (torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resident_bytes()) / GIB
