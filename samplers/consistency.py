"""Few steps of consistency models and other distilled models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Plan, Step

from .base.flow import FlowPolicy, FlowSampler
from .base.kernels import bridge


@dataclass(frozen=True)
class Consistency(FlowSampler):
    """Estimates the clean latents and noises them anew: x' = (1 - sigma') (x - sigma v) + sigma' z.

    Multistep consistency sampling (Song et al. 2023, arXiv 2303.01469, algorithm 1), which models that were distilled
    to a few steps are made for: LCM (Luo et al. 2023, arXiv 2310.04378), Turbo, DMD. Every step but the last, which
    adds no noise, is a decision of standard deviation sigma': what RLCM trains (Oertell et al. 2024, arXiv 2404.03673).
    One step decides nothing: for evaluation, and losses on the forward process. `bridge` with r = 0.

    `share_noise`: the group starts from one latent and fans out at its first random step.
    """

    num_steps: int = 4
    share_noise: bool = False

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
