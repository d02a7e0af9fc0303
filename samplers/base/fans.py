"""Base classes of samplers with fans: an ODE trunk, and random steps at chosen places, each followed by the ODE.

Maths: docs/maths/trees-and-paths.md#trees-of-denoising-paths
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Fork, Plan, Step

from .flow import FlowPolicy, FlowSampler, check_not_clean, check_window
from .kernels import euler_maruyama, flow_sde_diffusion, ode
from .window import Window

Compare = Literal["seed", "prompt"]


@dataclass(frozen=True)
class FanSampler(FlowSampler):
    """A flow sampler that follows the ODE from `roots` latents and tries single random steps on the way.

    At each chosen step the states of the trunk fan out by a Flow-SDE step, and each child goes on by the ODE to an
    image. `group_size` is the number of samples of a fan: `roots` times the children of each root. A prompt has
    `group_size` times the number of fans times the number of granularities samples.

    Only the members of one fan are compared with each other. With `compare: prompt` all members are compared, which
    differ by the random step and, with several roots, by the root; with `seed` the children of one root, which differ
    by the random step alone.

    The children of a fan go on with each stride of `granularities`, and each stride is a comparison of its own. A
    stride that is too long for the rest of the grid is left out. The first step behind the fan is that of the grid for
    all strides, and a last step that the stride would overshoot ends at 0.
    """

    roots: Annotated[int, Field(ge=1)] = 1  # initial latents (seeds) of a group; they divide `group_size`
    noise_level: Annotated[float, Field(gt=0, le=2)] = 0.7  # of the random steps, as in `flow_sde`
    # Strides of the grid behind a fan: each child goes on with each of them, in a comparison of its own.
    granularities: tuple[Annotated[int, Field(ge=1)], ...] = (1,)
    # `prompt`: all members of a fan are compared; `seed`: the children of one root.
    compare: Compare = "prompt"

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for granularities that are none or not different."""
        super().__post_init__()
        strides = self.granularities
        if not strides or len(set(strides)) < len(strides):
            raise ValueError(f"granularities must be different strides of the grid, at least 1, got {list(strides)}")

    @abstractmethod
    def jumps(self, key: GroupKey) -> Sequence[tuple[int, int]]:
        """Returns the random steps of the group `key`, ascending, at least one.

        Each goes from one place of the grid to a later place, which lies before the end of the grid.
        """

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
        """Returns a trunk with a fan at each jump. Raises ValueError where `roots` does not divide the group."""
        if group_size % self.roots:
            raise ValueError(f"group_size must be a multiple of roots ({self.roots}), got {group_size}")
        by_root = self.compare == "seed" and self.roots > 1
        if by_root and group_size == self.roots:
            raise ValueError(
                f"compare 'seed' needs two children of each of {self.roots} roots, got {group_size} in all"
            )
        sigmas, jumps = self.grid(policy), self.jumps(key)
        fans = [
            self._fan(sigmas, jump, group_size // self.roots, number * len(self.granularities))
            for number, jump in enumerate(jumps)
        ]
        # the trunk is needed as far as the last fan, which goes on from it; the other fans leave it before
        last = fans.pop()
        later = tuple(replace(fork, at=last.at + fork.at) for fork in last.forks)
        steps = (*_ode(sigmas[: last.at + 1]), *last.steps)
        return Plan(self.roots, steps, self.guidance_scale, (*fans, *later), last.group, by_root=by_root)

    def _fan(self, sigmas: Sequence[float], jump: tuple[int, int], children: int, group: int) -> Fork:
        """Returns the fan of one jump: its random step and the ODE behind it, for each stride of the granularities.

        Args:
            jump: places of the grid. children: of each root. group: number of the fan's first comparison.
        """
        place, reached = jump
        sigma, sigma_next = sigmas[place], sigmas[reached]
        check_not_clean(place, sigma_next)
        move = euler_maruyama(sigma, sigma_next, flow_sde_diffusion(sigma, sigmas[1], self.noise_level))
        tails: list[tuple[int, list[float]]] = []  # group, levels from the child on
        for number, stride in enumerate(self.granularities):
            levels = [sigma_next, *sigmas[reached + 1 :: stride]]
            levels[-1] = sigmas[-1]
            if levels not in [tail for _, tail in tails] and (len(levels) > 2 or not tails):
                tails.append((group + number, levels))
        (own, finest), *coarser = tails
        forks = tuple(Fork(2, _ode(levels[1:]), group=number) for number, levels in coarser)
        return Fork(place, (Step(sigma, sigma_next, move, children), *_ode(finest)), forks, own)


@dataclass(frozen=True)
class WindowedFans(FanSampler):
    """A sampler with a fan at each step of a window."""

    window: Window = field(default_factory=Window)  # the steps at which fans stand

    def __post_init__(self) -> None:
        """Raises ValueError for settings out of range, and for a window that reaches beyond the grid."""
        super().__post_init__()
        check_window(self.window, self.num_steps)

    def jumps(self, key: GroupKey) -> Sequence[tuple[int, int]]:
        return [(step, step + 1) for step in self.window.steps(self.num_steps, key)]


def _ode(levels: Sequence[float]) -> tuple[Step, ...]:
    """Returns the ODE steps between the noise levels."""
    return tuple(Step(*pair, ode(*pair)) for pair in pairwise(levels))
