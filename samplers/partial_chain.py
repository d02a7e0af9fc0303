"""The last part of a sampling chain, from noised outputs of the data."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Plan, Step

from .base.flow import FlowPolicy, FlowSampler, rounded_share
from .base.kernels import ode

Share = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class PartialChain(FlowSampler):
    """The last steps of `ode`, from the best image or clip that the prompt brings, noised to the level of the first.

    Yuan et al. 2023, "InstructVideo: Instructing Video Diffusion Models with Human Feedback", arXiv 2312.12490,
    section 3.2, who fine-tune a model by rewards as an editor of the clips of its data: x = (1 - sigma) clean +
    sigma noise, with its own noise for each sample of a group, and then a share `strength` of the steps (theirs: 0.6 of
    20 steps of DDIM). The noise follows from the key of the group. With a strength of 1 nothing is left of the clip
    where the grid begins at sigma 1: this is `ode`.

    `is_one_step` goes from the first level to the last in one step, which is the clean output that the network predicts
    at the first level: the samples of ControlNet++ (Li et al. 2024, arXiv 2404.07987, equation 8), with a `strength`
    of [0.001, 0.2] of 1000 steps. A range of strengths gives each group its own number of steps, uniform between the
    two, and needs `is_one_step`: the groups of a rollout make equally many steps.

    The layouts `given_images` and `given_videos` read such data, and `edit` where a row has `edited`. Evaluation on
    prompts without them takes a sampler of its own, such as `ode`.
    """

    # Share of the steps that are made, rounded down, at least one; with `is_one_step` also a range: [0.001, 0.2].
    strength: Share | tuple[Share, Share] = 0.6
    is_one_step: bool = False  # the last level follows on the first: the clean output that is predicted there

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.strength, tuple):
            if not self.is_one_step:
                raise ValueError(f"a range of strengths needs is_one_step, got {list(self.strength)} without it")
            if self.strength[0] > self.strength[1]:
                raise ValueError(f"strength must be one share or two ascending ones, got {list(self.strength)}")

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        sigmas = self.grid(policy)[-self._num_made(key) - 1 :]
        levels = (sigmas[0], sigmas[-1]) if self.is_one_step else sigmas
        steps = tuple(Step(*ends, ode(*ends)) for ends in pairwise(levels))
        return Plan(group_size, steps, self.guidance_scale, from_given=True)

    def _num_made(self, key: GroupKey) -> int:
        """Returns the number of steps of the grid that are behind the first level of a group."""
        shares = self.strength if isinstance(self.strength, tuple) else (self.strength, self.strength)
        low, high = (rounded_share(share, self.num_steps) for share in shares)
        return low + key.seed_for("strength") % (high - low + 1)
