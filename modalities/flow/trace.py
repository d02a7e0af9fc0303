"""The trace of a rollout of a flow policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl.system.host_memory import on_host

from .decisions import Conditioning, FlowDecisions
from .trajectory import Trajectory


@dataclass(frozen=True)
class FlowTrace:
    """The record from which a flow policy evaluates a rollout again."""

    conditioning: Conditioning  # of the P prompts
    guidance_scale: float
    decided: FlowDecisions
    clean: Tensor  # [B, ...] final latents
    trajectory: Trajectory | None = None  # where gradients of rewards need it
    gradient: Tensor | None = None  # [E, ...] of the scores with respect to the sampled latents, once carried back

    def on_host(self) -> "FlowTrace":
        """Returns the same trace with its latents in the CPU's memory; with a trajectory, from which gradients of
        rewards start, the trace as it is."""
        if self.trajectory is not None:
            return self
        return replace(self, decided=self.decided.on_host(), clean=on_host(self.clean))

    @classmethod
    def join(cls, parts: "Sequence[FlowTrace]") -> "FlowTrace":
        """Joins traces in order."""
        sizes = [len(part.conditioning) for part in parts]
        kept = [part.trajectory for part in parts if part.trajectory is not None]
        return cls(
            Conditioning.join([part.conditioning for part in parts]),
            parts[0].guidance_scale,
            FlowDecisions.join([part.decided for part in parts], sizes),
            torch.cat([part.clean for part in parts]),
            Trajectory.join(kept, sizes) if kept else None,
        )
