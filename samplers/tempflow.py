"""The sampler of TempFlow-GRPO: trajectory branching."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mmrl.core.numerics import MOST

from .base.fans import Compare, WindowedFans


@dataclass(frozen=True)
class TempFlow(WindowedFans):
    """An ODE trunk from several seeds with a fan at every step (TempFlow-GRPO, He et al. 2025, arXiv 2508.04324).

    The reward of a child is then that of its single random step. The defaults are those of Shredded-Pork/TempFlow-GRPO
    for SD3.5: 10 steps, 4 seeds, 6 children each (`group_size: 24`), noise level 0.7 (FLUX: 0.9). A trunk of 10 steps
    costs 1116 network calls for a prompt where 24 chains cost 240; `window` chooses fewer steps. As in their code the
    6 children of one step and seed are compared with each other (`compare: seed`): these differ by the random step
    alone, where `prompt` also compares seeds. Goes with advantage `timestep_weighted`.
    """

    num_steps: Annotated[int, Field(ge=1, le=MOST)] = 10  # denoising steps; the paper's value
    roots: Annotated[int, Field(ge=1)] = 4  # initial latents (seeds) of a group; the paper's value
    # `seed`: the children of one root are compared, as in the paper; `prompt`: the 24 of a step, whatever their seeds.
    compare: Compare = "seed"
