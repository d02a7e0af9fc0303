"""Deterministic tails of paths by the schedulers of diffusers, for batches whose rows stay together."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.plans.flow import SolverName, Tail

from .frontier import TreeStep

# Multistep solvers count in log-SNR, which is infinite at sigma = 1. DPM-Solver++ has a limit there: its second step is
# of order 1 like the first, which is infinitely far. UniPC's corrector has none; diffusers begins it here.
NEXT_TO_NOISE = 1 - 1e-6


class Solver:
    """One tail on its own grid, from one network call to the next: it keeps what it needs of earlier calls."""

    def __init__(self, tail: Tail) -> None:
        self._scheduler, self._number = _scheduler(tail.solver, tail.sigmas), 0

    def __call__(self, latents: Tensor, velocity: Tensor) -> Tensor:
        """The latents [n, ...] of the next call (float32), from those of this one and what the network said of them.

        A last step from the first level of a multistep solver, and one to sigma 0, are of order 1, and so are the first
        two of `dpmpp_2m` from sigma 1.
        """
        time = self._scheduler.timesteps[self._number]
        self._number += 1
        stepped: Tensor = self._scheduler.step(velocity.float(), time, latents.float(), return_dict=False)[0]
        return stepped


class Solvers:
    """The solvers of the tails of a tree; path states that begin the same tail at one call share one."""

    def __init__(self) -> None:
        self._of: dict[tuple[Tail, int], Solver] = {}

    def stepped(self, tree_step: TreeStep, called: tuple[Tensor, Tensor], branch: Tensor, child: Tensor) -> Tensor:
        """The children [c, ...] of a tree step, those in tails as their solvers have them.

        Args:
            called: latents and velocity [n, ...] of the states before. branch: [n] children of each, next to each
                other; one in a tail.
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
