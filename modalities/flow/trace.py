"""What a flow policy keeps of a rollout."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .decisions import Conditioning, Decided
from .trajectory import Trajectory


@dataclass(frozen=True)
class FlowTrace:
    """What a flow policy needs to evaluate a rollout again."""

    conditioning: Conditioning  # of the P prompts
    guidance_scale: float
    decided: Decided
    clean: Tensor  # [B, ...] final latents
    trajectory: Trajectory | None = None  # where gradients of rewards start from it
    gradient: Tensor | None = None  # [E, ...] of the scores by the drawn latents, once carried back

    @classmethod
    def join(cls, parts: "Sequence[FlowTrace]") -> "FlowTrace":
        """One trace of all, in order."""
        sizes = [len(part.conditioning) for part in parts]
        kept = [part.trajectory for part in parts if part.trajectory is not None]
        return cls(
            Conditioning.join([part.conditioning for part in parts]),
            parts[0].guidance_scale,
            Decided.join([part.decided for part in parts], sizes),
            torch.cat([part.clean for part in parts]),
            Trajectory.join(kept, sizes) if kept else None,
        )
