"""The sampler of TempFlow-GRPO: trajectory branching."""

from dataclasses import dataclass

from .base.fans import Compare, WindowedFans


@dataclass(frozen=True)
class TempFlow(WindowedFans):
    """An ODE trunk from several seeds with a fan at every step (TempFlow-GRPO, He et al. 2025, arXiv 2508.04324).

    The reward of a child is then one of its single random step. The defaults are those of Shredded-Pork/TempFlow-GRPO
    for SD3.5: 10 steps, 4 seeds, 6 children each (`group_size: 24`), noise level 0.7 (FLUX: 0.9). A trunk of 10 steps
    costs 1116 network calls for a prompt where 24 chains cost 240; `window` chooses fewer steps. As in their code the
    6 children of one step and seed are compared with each other (`compare: seed`): these differ by that step alone,
    where `prompt` also tells good seeds from bad ones. Goes with advantage `timestep_weighted`.
    """

    num_steps: int = 10
    roots: int = 4
    compare: Compare = "seed"
