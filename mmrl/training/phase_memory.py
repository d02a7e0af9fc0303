"""The memory of a process in a phase of an iteration: the peak of a CUDA GPU, elsewhere the resident set."""

from dataclasses import dataclass

import torch

from mmrl.system.host_memory import resident_bytes

GIB = 2**30


@dataclass
class PhaseMemory:
    """Counts the memory of a device by phases. Nobody else resets the GPU's peak while a run trains."""

    device: torch.device
    highest: float = 0.0  # GiB, of all so far: before, in and between phases
    host: float = 0.0  # GiB of the CPU's memory that the process held at the last begin or end of a phase

    def begin(self) -> None:
        """Begins a phase: a GPU's peak counts from now."""
        self.end()  # what was between two phases counts in `highest` alone
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def end(self) -> float:
        """Returns GiB: a GPU's peak of tensors since the phase began, or what the process holds of the CPU's memory."""
        self.host = resident_bytes() / GIB
        peak = torch.cuda.max_memory_allocated(self.device) / GIB if self.device.type == "cuda" else self.host
        self.highest = max(self.highest, peak)
        return peak
