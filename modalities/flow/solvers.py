"""Deterministic tails of paths by the schedulers of diffusers, for batches whose rows stay together."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.plans.flow import SolverName, Tail

from .frontier import TreeStep

# Multistep solvers work in log-SNR, which is infinite at sigma = 1. DPM-Solver++ has a limit there: its second step is
# of order 1 like the first, which is infinitely long. UniPC's corrector has no limit; diffusers begins at this level.
NEXT_TO_NOISE = 1 - 1e-6


class Solver:
    """The solver of one tail on its own grid, which keeps what it needs of earlier network calls."""

    def __init__(self, tail: Tail) -> None:
        self._scheduler, self._number = _scheduler(tail.solver, tail.sigmas), 0

    def __call__(self, latents: Tensor, velocity: Tensor) -> Tensor:
        """Returns the latents [n, ...] of the next call (float32), from the latents and the velocity of this call.

        Of a multistep solver, a last step that is also the first, a step to sigma 0, and the first two steps of
        `dpmpp_2m` from sigma 1 are of order 1.
        """
        time = self._scheduler.timesteps[self._number]
        self._number += 1
        stepped: Tensor = self._scheduler.step(velocity.float(), time, latents.float(), return_dict=False)[0]
        return stepped


class Solvers:
    """The solvers of the tails of a tree; path states that begin the same tail at one call share a solver."""

    def __init__(self) -> None:
        self._of: dict[tuple[Tail, int], Solver] = {}

    def stepped(self, tree_step: TreeStep, called: tuple[Tensor, Tensor], branch: Tensor, child: Tensor) -> Tensor:
        """Returns the children [c, ...] of a tree step; those of path states in tails come from their solvers.

        Args:
            called: latents and velocity [n, ...] of the states before. branch: [n] children of each state, next to each
                other; 1 in a tail.
        """
        tails = [path_state.tail(tree_step.number) for path_state in tree_step.path_states]
        keys = [tail for tail in dict.fromkeys(tails) if tail is not None]
        if not keys:
            return child
        which = tree_step.spread([-1 if tail is None else keys.index(tail) for tail in tails], torch.int64)
        place, result = branch.cumsum(0) - branch, child.clone()
        for number, key in enumerate(keys):
            if key not in self._of:
                self._of[key] = Solver(key[0])
            own = (which == number).nonzero().squeeze(1)
            latents, velocity = (tensor[own.to(tensor.device)] for tensor in called)
            result[place[own].to(result.device)] = self._of[key](latents, velocity)
        return result


def _scheduler(name: SolverName, sigmas: Sequence[float]) -> Any:
    """Returns a scheduler of diffusers at the beginning of a grid."""
    from diffusers import DPMSolverMultistepScheduler, FlowMatchHeunDiscreteScheduler, UniPCMultistepScheduler

    grid = torch.tensor(sigmas, dtype=torch.float32)
    scheduler: Any
    if name == "heun":
        scheduler = FlowMatchHeunDiscreteScheduler()
        scheduler.set_timesteps(len(grid) - 1)
        scheduler.sigmas = torch.cat([grid[:1], grid[1:-1].repeat_interleave(2), grid[-1:]])
    else:
        kind = DPMSolverMultistepScheduler if name == "dpmpp_2m" else UniPCMultistepScheduler
        scheduler = kind(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=1.0, solver_order=2)
        scheduler.sigmas = grid if name == "dpmpp_2m" else grid.clamp(max=NEXT_TO_NOISE)
        scheduler.num_inference_steps = len(grid) - 1  # set_timesteps goes through conversions that numpy deprecates
    scheduler.timesteps = scheduler.sigmas[:-1] * 1000
    scheduler.set_begin_index(0)
    return scheduler
