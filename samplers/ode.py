"""Deterministic sampling."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Plan, SolverName, Step, Tail

from .base.flow import FlowPolicy, FlowSampler
from .base.kernels import ode


@dataclass(frozen=True)
class ODE(FlowSampler):
    """A sampler without noise, each sample from its own initial latent: for evaluation and forward-process losses."""

    # `euler`; of order 2: `dpmpp_2m` (DPM-Solver++ 2M) and `unipc`, one network call for each step, and `heun`, two for
    # each step but the last.
    solver: Literal["euler", SolverName] = "euler"

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        sigmas = self.grid(policy)
        if self.solver != "euler":
            return Plan(group_size, (), self.guidance_scale, tail=Tail(self.solver, tuple(sigmas)))
        steps = tuple(Step(*levels, ode(*levels)) for levels in pairwise(sigmas))
        return Plan(group_size, steps, self.guidance_scale)
