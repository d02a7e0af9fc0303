"""Deterministic sampling."""

from dataclasses import dataclass
from itertools import pairwise

from mmrl.keys import GroupKey
from mmrl.plans import Plan, Step
from mmrl.samplers._base import FlowPolicy, FlowSampler
from mmrl.samplers._kernels import ode


@dataclass(frozen=True)
class ODE(FlowSampler):
    """Euler steps without noise, each sample from its own initial latent: for evaluation and forward-process losses."""

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        steps = tuple(Step(*levels, ode(*levels)) for levels in pairwise(self.grid(policy)))
        return Plan(group_size, steps, self.guidance_scale)
