"""The sampler of consistency models and other models distilled to a few steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.core.numerics import MOST
from mmrl.plans.flow import Plan, Step

from .base.flow import FlowPolicy, FlowSampler
from .base.kernels import bridge


@dataclass(frozen=True)
class Consistency(FlowSampler):
    """A sampler that estimates the clean latents and adds fresh noise: x' = (1 - sigma') (x - sigma v) + sigma' z.

    Multistep consistency sampling (Song et al. 2023, arXiv 2303.01469, algorithm 1), for models that were distilled to
    a few steps: LCM (Luo et al. 2023, arXiv 2310.04378), Turbo, DMD. Every step but the last, which
    adds no noise, is a decision of standard deviation sigma': what RLCM trains (Oertell et al. 2024, arXiv 2404.03673).
    A single step is no decision: for evaluation, and losses on the forward process. `bridge` with r = 0.
    """

    num_steps: Annotated[int, Field(ge=1, le=MOST)] = 4  # denoising steps; 1 to 4 are usual
    share_noise: bool = False  # the group starts from one latent and fans out at its first step

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        steps = self._steps(self.grid(policy))
        if not (self.share_noise and steps[0].is_random):
            return Plan(group_size, steps, self.guidance_scale)
        return Plan(1, (replace(steps[0], branch=group_size), *steps[1:]), self.guidance_scale)

    def _steps(self, sigmas: Sequence[float]) -> tuple[Step, ...]:
        *noised, clean = pairwise(sigmas)
        # the end of a grid that stops above 0 is where the policy decodes: it is reached without noise
        moves = [Step(*levels, bridge(*levels, 0.0)) for levels in noised]
        return (*moves, Step(*clean, bridge(*clean, 1.0)))
