"""What samplers with fans share: an ODE trunk, and random steps at chosen places of it, each followed by the ODE.

Maths: docs/maths/trees-and-paths.md#trees-of-denoising-paths
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from mmrl.core.keys import GroupKey
from mmrl.plans.flow import Fork, Plan, Step

from .flow import FlowPolicy, FlowSampler, check_not_clean, check_positive, check_window
from .kernels import euler_maruyama, flow_sde_diffusion, ode
from .window import Window

Compare = Literal["seed", "prompt"]


@dataclass(frozen=True)
class FanSampler(FlowSampler):
    """A flow sampler that follows the ODE from `roots` latents and tries single random steps on its way.

    At each chosen step the states of the trunk fan out by a Flow-SDE step (`noise_level`, see `flow_sde`), and each
    child goes on by the ODE to an image. `group_size` is the number of samples of a fan, `roots` times the children of
    each, so a prompt has as many samples as that times the fans, times the granularities. `roots` must divide it.

    The members of a fan are compared with each other only: with `compare: prompt` all of them, which differ by that
    step and, with several roots, by those; with `seed` the children of one root, which differ by that step alone.

    `granularities`: the children of a fan go on with each of these strides of the grid, each a comparison of its own; a
    stride that is too long for what is left of the grid is left out. The first step behind the fan is that of the grid
    for all, and a last step that the stride would overshoot ends at 0.
    """

    roots: int = 1
    noise_level: float = 0.7
    granularities: tuple[int, ...] = (1,)
    compare: Compare = "prompt"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.roots < 1:
            raise ValueError(f"roots must be at least 1, got {self.roots}")
        check_positive("noise_level", self.noise_level, at_most=2)
        strides = self.granularities
        if not strides or min(strides) < 1 or len(set(strides)) < len(strides):
            raise ValueError(f"granularities must be different strides of the grid, at least 1, got {list(strides)}")

    @abstractmethod
    def jumps(self, key: GroupKey) -> Sequence[tuple[int, int]]:
        """The random steps, each from one place of the grid to a later one before the last; ascending, at least one."""

    def plan(self, policy: FlowPolicy, key: GroupKey, group_size: int) -> Plan:
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
        # the trunk is of use as far as the last fan, which goes on with it; the others leave it before
        last = fans.pop()
        later = tuple(replace(fork, at=last.at + fork.at) for fork in last.forks)
        steps = (*_ode(sigmas[: last.at + 1]), *last.steps)
        return Plan(self.roots, steps, self.guidance_scale, (*fans, *later), last.group, by_root=by_root)

    def _fan(self, sigmas: Sequence[float], jump: tuple[int, int], children: int, group: int) -> Fork:
        """A random step from one place of the grid to another, and the ways on; groups are numbered from `group`."""
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
    """Fans at the steps of a window."""

    window: Window = field(default_factory=Window)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.window, self.num_steps)

    def jumps(self, key: GroupKey) -> Sequence[tuple[int, int]]:
        return [(step, step + 1) for step in self.window.steps(self.num_steps, key)]


def _ode(levels: Sequence[float]) -> tuple[Step, ...]:
    return tuple(Step(*pair, ode(*pair)) for pair in pairwise(levels))
