"""The last part of a sampling chain, from noised outputs of the data."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Plan, Step

from .base.flow import FlowPolicy, FlowSampler, rounded_share
from .base.kernels import ode


@dataclass(frozen=True)
class PartialChain(FlowSampler):
    """The last steps of `ode`, from the best image or clip that the prompt brings, noised to the level of the first.

    Yuan et al. 2023, "InstructVideo: Instructing Video Diffusion Models with Human Feedback", arXiv 2312.12490,
    section 3.2, who fine-tune a model by rewards as an editor of the clips of its data: x = (1 - sigma) clean +
    sigma noise, with its own noise for each sample of a group, and then a share `strength` of the steps (theirs: 0.6 of
    20 steps of DDIM). The noise follows from the key of the group. With a strength of 1 nothing is left of the clip
    where the grid begins at sigma 1: this is `ode`.

    The layouts `given_images` and `given_videos` read such data. Evaluation on prompts without them takes a sampler of
    its own, such as `ode`.
    """

    strength: Annotated[float, Field(gt=0, le=1)] = 0.6  # share of the steps that are made, rounded down, at least one

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        sigmas = self.grid(policy)[-rounded_share(self.strength, self.num_steps) - 1 :]
        steps = tuple(Step(*levels, ode(*levels)) for levels in pairwise(sigmas))
        return Plan(group_size, steps, self.guidance_scale, from_given=True)
