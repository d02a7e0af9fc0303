"""The plan of a group of images or videos, as a value: a tree of denoising steps on a grid of noise levels.

From small to large: a transition is the arithmetic of one step, a step joins two noise levels, a tail is many steps of
a solver, a choice selects among states, a fork is another way on, a plan is the tree of all.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from mmrl.core.rewards import Reward

SMALLEST_STD = 1e-15  # log-probs divide by its square, which float32 can still hold


@dataclass(frozen=True)
class Transition:
    """The arithmetic of one step, x' = state * x + velocity * v(x) + std * z with z ~ N(0, I).

    Every published kernel is linear in the latents x and the predicted velocity v, so three numbers define it.
    """

    state: float
    velocity: float
    std: float  # at least 0; 0 for a deterministic step, which has no log-prob

    def __post_init__(self) -> None:
        if not self.std >= 0:
            raise ValueError(f"the standard deviation of a step must be at least 0, got {self.std}")
        if 0 < self.std < SMALLEST_STD:
            raise ValueError(f"the noise of a step, of standard deviation {self.std:g}, is too small for float32")

    def mean(self, latents: Tensor, velocity: Tensor) -> Tensor:
        """Returns the mean of the next latents, with the shape of `latents` and of `velocity`."""
        return self.state * latents + self.velocity * velocity


@dataclass(frozen=True)
class Step:
    """A step from one noise level to a lower one.

    A random step that is not trained explores, but is no decision (DanceGRPO trains a share of its steps).
    """

    sigma: float  # in [0, 1]
    sigma_next: float  # in [0, 1], below sigma
    transition: Transition
    branch: int = 1  # next states that are sampled from each state
    is_trained: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.sigma_next < self.sigma <= 1:
            raise ValueError(f"a step must fall within [0, 1], got sigma {self.sigma} -> {self.sigma_next}")
        if self.branch < 1:
            raise ValueError(f"a step must have at least one child, got branch {self.branch}")
        if self.branch > 1 and self.transition.std == 0:
            raise ValueError(f"a step without noise cannot branch: all {self.branch} children would be the same")

    @property
    def is_random(self) -> bool:
        """Whether noise is added."""
        return self.transition.std > 0

    @property
    def is_decision(self) -> bool:
        """Whether it is random and trained."""
        return self.is_random and self.is_trained


SolverName = Literal["dpmpp_2m", "unipc", "heun"]


@dataclass(frozen=True)
class Tail:
    """The deterministic steps of a solver, none of which is a decision.

    `dpmpp_2m`: DPM-Solver++(2M) (Lu et al. 2022, arXiv 2211.01095, algorithm 2); `unipc`: UniPC of order 2 with its
    corrector (Zhao et al. 2023, arXiv 2302.04867); `heun`: Heun's method (Karras et al. 2022, arXiv 2206.00364,
    algorithm 1), which calls the network twice for each step but the last.
    """

    solver: SolverName
    sigmas: tuple[float, ...]  # the n + 1 noise levels of n steps, falling within [0, 1]

    def __post_init__(self) -> None:
        falls = all(sigma > sigma_next for sigma, sigma_next in pairwise(self.sigmas))
        if len(self.sigmas) < 2 or not (falls and self.sigmas[0] <= 1 and self.sigmas[-1] >= 0):
            raise ValueError(f"a solver needs at least two levels that fall within [0, 1], got {list(self.sigmas)}")

    @property
    def calls(self) -> tuple[float, ...]:
        """The noise level of each network call."""
        if self.solver != "heun":
            return self.sigmas[:-1]
        return (self.sigmas[0], *(sigma for sigma in self.sigmas[1:-1] for _ in range(2)))


@dataclass(frozen=True)
class Neighbors:
    """The initial noises of a group that are near one another, and the calls at which its members are compared.

    The members begin at sqrt(1 - spread^2) base + spread own, where `base` is one noise for all and `own` one for each.
    With a spread of 1 each has its own noise, with 0 all have the same; the variance is 1 in any case.

    A decision is which member to go on as. At each network call of `moves`, the step from the state of an anchor gives
    the mean of its next state, and the next states of all members count as samples from there. So one call has as many
    next states as the group has members. The std of the step is that of this density; no noise is added.
    """

    spread: float  # in [0, 1]
    anchors: tuple[int, ...] = ()  # places of members in the group, ascending
    moves: tuple[tuple[int, Step], ...] = ()  # number of a network call, ascending, and the step there

    def __post_init__(self) -> None:
        if not 0 <= self.spread <= 1:
            raise ValueError(f"spread must be within [0, 1], got {self.spread}")
        numbers = [number for number, _ in self.moves]
        if bool(numbers) != bool(self.anchors) or numbers != sorted(set(numbers)):
            raise ValueError(f"anchors and ascending calls go together, got {list(self.anchors)} and calls {numbers}")
        if list(self.anchors) != sorted(set(self.anchors)) or min(self.anchors, default=0) < 0:
            raise ValueError(f"anchors are members of a group, ascending, got {list(self.anchors)}")
        if not all(step.is_decision and step.branch == 1 for _, step in self.moves):
            raise ValueError("the step from an anchor has a std above 0 and one child")

    def check(self, roots: int, levels: Sequence[float]) -> None:
        """Raises ValueError unless a group of `roots` members has the anchors and makes the steps of `moves`.

        `levels`: the noise levels of the group's network calls, and the last one.
        """
        if self.anchors[-1] >= roots:
            raise ValueError(f"anchors are members of a group of {roots}, got {list(self.anchors)}")
        ways = list(pairwise(levels))
        for number, step in self.moves:
            if not (0 <= number < len(ways) and ways[number] == (step.sigma, step.sigma_next)):
                raise ValueError(
                    f"the step from an anchor at call {number} must have the plan's noise levels, got {step}"
                )

    def mixed(self, base: Tensor, own: Tensor) -> Tensor:
        """Returns the initial noise [n, ...] of n members, of the base noise [...] and their own noise [n, ...]."""
        return math.sqrt(1 - self.spread**2) * base + self.spread * own

    def move(self, number: int) -> Step | None:
        """Returns the step at which anchors are compared with members behind a network call; None: none are."""
        return next((step for call, step in self.moves if call == number), None)

    @property
    def num_calls(self) -> int:
        """The number of network calls of one pass over the decisions."""
        return len(self.anchors) * len(self.moves)


# Which states a choice keeps: (rewards [n, of, J] float64 of n times `of` states; `keep`; a generator for this choice)
# -> their places [n, keep] int64. The J rewards of a state are those at the choices before, NaN where there were fewer,
# and last that at this choice.
Rule = Callable[[Tensor, int, torch.Generator], Tensor]


@dataclass(frozen=True)
class Choice:
    """A selection among states on their way: of every `of` states in a row the rule keeps `keep`, by their rewards.

    A state may be kept more than once. The reward judges the clean latents that the network estimates at a state, or
    those at the end of the path.
    """

    at: int  # behind this network call of the path, from 0, before the step from there; the number of calls: at the end
    of: int  # states to select from, at least 1
    keep: int  # states to keep, at least 1
    rule: Rule
    reward: Reward

    def __post_init__(self) -> None:
        if self.at < 0 or self.of < 1 or self.keep < 1:
            raise ValueError(f"a choice keeps at least 1 of at least 1 state, got {self.keep} of {self.of}")


@dataclass(frozen=True)
class RewardGuidance:
    """A reward whose gradient is added to the velocity v at some network calls.

    v - scale * sigma / (1 - sigma) * dr/dx: the velocity of latents whose density is p(x) exp(scale r(x)), where v is
    that of p(x). The reward judges the clean latents x - sigma v that the network estimates, with v held.
    """

    reward: Reward
    scale: float  # at least 0, in 1 / units of the reward
    first: int  # number of the first such network call of the path, from 0; its sigma is below 1
    last: int  # number of the call before which they end

    def __post_init__(self) -> None:
        if self.scale < 0 or not 0 <= self.first < self.last:
            raise ValueError(
                f"guidance by a reward has a scale of at least 0 and ascending calls, got {self.scale:g} and "
                f"{self.first} to {self.last}"
            )


@dataclass(frozen=True)
class Fork:
    """Another way on from the states before a step of a path, which shares the network calls of that step."""

    at: int  # the step of the path that it leaves before
    steps: tuple[Step, ...]  # on a grid of their own
    forks: tuple["Fork", ...] = ()  # ways that leave this one, at places counted in its own steps
    group: int = 0  # number of the group of its ends among those of the prompt, see `keys.subgroup`
    tail: Tail | None = None  # behind the steps

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a fork needs steps, got none")
        _check_path(self, first_fork=1)


@dataclass(frozen=True)
class Path:
    """One way through a plan, from where it leaves its parent to its ends. Each end is a sample."""

    steps: tuple[Step, ...]
    group: int  # number of the group of its ends; of the first group where there are several
    parent: int | None  # the place in `Plan.paths` of the path that it leaves; None: it begins at the roots
    start: int  # steps of the tree before its own first step
    num_starts: int  # states that it begins at
    name: tuple[int, ...]  # the places of the forks that lead to it, from which the keys of its noise are made
    tail: Tail | None = None
    choices: tuple[Choice, ...] = ()
    neighbors: Neighbors | None = None
    num_groups: int = 1  # groups of its ends, of the same size, one after the other

    @property
    def groups(self) -> list[int]:
        """The number of the group of each of its ends."""
        return [self.group + place * self.num_groups // self.num_ends for place in range(self.num_ends)]

    @property
    def levels(self) -> tuple[float, ...]:
        """The noise level of each of its network calls."""
        return (*(step.sigma for step in self.steps), *(() if self.tail is None else self.tail.calls))

    @property
    def end(self) -> int:
        """The number of the network call behind its last one, counted from the first of the tree."""
        return self.start + len(self.levels)

    @property
    def last_level(self) -> float:
        """The noise level that it ends at."""
        return self.steps[-1].sigma_next if self.tail is None else self.tail.sigmas[-1]

    def choice(self, at: int) -> Choice | None:
        """Returns the choice behind its network call `at`, or at its end; None: there is no choice."""
        return next((choice for choice in self.choices if choice.at == at), None)

    def _states(self) -> list[int]:
        """Returns the number of states at each network call, and at the end before a choice there."""
        counts = [self.num_starts]
        for number in range(len(self.levels)):
            branch = self.steps[number].branch if number < len(self.steps) else 1
            counts.append(_kept(counts[-1], self.choice(number)) * branch)
        return counts

    def num_nodes(self) -> list[int]:
        """Returns the number of states that each of its network calls evaluates."""
        return self._states()[:-1]

    @property
    def num_ends(self) -> int:
        """The number of its ends: samples."""
        return _kept(self._states()[-1], self.choice(len(self.levels)))


@dataclass(frozen=True)
class Plan:
    """The plan of one group: initial latents, then a tree of steps. Each leaf of the tree is a sample.

    The tree is a path of steps, which forks leave, which other forks leave in turn.
    """

    roots: int  # initial latents, at least 1
    steps: tuple[Step, ...]  # none where there is a tail
    # Of classifier-free guidance, v = v_negative + scale * (v_prompt - v_negative). 1: no guidance, half of the calls.
    guidance_scale: float = 1.0
    forks: tuple[Fork, ...] = ()  # other ways, which leave the path
    group: int = 0  # number of the group of the path's own ends among those of the prompt, see `keys.subgroup`
    tail: Tail | None = None  # a solver's steps behind the steps
    choices: tuple[Choice, ...] = ()  # selections on the way, at ascending places, of a plan without forks
    neighbors: Neighbors | None = None  # how near one another the roots are, and where they are compared
    by_root: bool = False  # ends of different roots are in different groups
    reward_guidance: RewardGuidance | None = None  # a reward that bends the way, of a plan without forks and decisions
    # The first latents are the best output that the prompt brings, encoded and noised to the first level; else noise.
    from_given: bool = False

    def __post_init__(self) -> None:
        if self.roots < 1 or not (self.steps or self.tail):
            raise ValueError(f"a plan needs roots and steps, got {self.roots} roots and {len(self.steps)} steps")
        _check_path(self, first_fork=0)
        if self.by_root and (self.choices or self.neighbors is not None):
            raise ValueError("by_root does not go with choices or neighbors, which compare ends of different roots")
        if (guidance := self.reward_guidance) is not None:
            if self.forks or any(step.is_decision or step.branch > 1 for step in self.steps):
                raise ValueError("a plan that a reward guides has no forks and no decisions")
            levels = self.paths[0].levels[guidance.first : guidance.last]
            if not levels or levels[0] >= 1:
                raise ValueError(f"a reward guides calls at levels below 1, got {list(levels)}")
        if self.choices and self.forks:
            raise ValueError("a plan with forks makes no choices: the ends of its paths are compared with each other")
        places = [choice.at for choice in self.choices]
        allowed = [*range(len(self.steps) + 1), len(self.paths[0].levels)]  # not within a tail: a solver has a memory
        if places != sorted(set(places)) or not set(places) <= set(allowed):
            raise ValueError(f"choices stand behind calls of {allowed}, ascending, got {places}")
        if self.neighbors is not None and self.neighbors.moves:
            is_tree = self.forks or self.choices or any(step.branch > 1 or step.is_decision for step in self.steps)
            if is_tree or (self.tail is not None and self.tail.solver == "heun"):
                raise ValueError("members beside anchors go a step for each call, none branching or trained; not heun")
            self.neighbors.check(self.roots, (*self.paths[0].levels, self.paths[0].last_level))

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """All ways through the tree: the plan's own path, then each fork, followed by the forks of that fork."""
        own = Path(self.steps, self.group, None, 0, self.roots, (), self.tail, self.choices, self.neighbors)
        paths = _paths(self, own, 0)
        if not self.by_root:
            return tuple(paths)
        return tuple(replace(path, group=path.group * self.roots, num_groups=self.roots) for path in paths)

    @property
    def num_compared(self) -> int:
        """The number of samples of the smallest group."""
        return min(path.num_ends // path.num_groups for path in self.paths)

    @property
    def is_plain(self) -> bool:
        """Whether all its steps are transitions of the network's velocity and all decisions are steps.

        Then it has no solver, no choices, no anchors and no reward that guides.
        """
        has_anchors = self.neighbors is not None and bool(self.neighbors.moves)
        return not (self.choices or has_anchors or self.reward_guidance) and all(
            path.tail is None for path in self.paths
        )

    @property
    def num_tree_steps(self) -> int:
        """The depth of the tree: how often the network is called, on batches of states."""
        return max(path.end for path in self.paths)

    @property
    def num_samples(self) -> int:
        return sum(path.num_ends for path in self.paths)

    @property
    def num_controls(self) -> int:
        return 0

    @property
    def has_greedy(self) -> bool:
        return False

    def num_nodes(self) -> list[int]:
        """Returns the number of states at each step of the tree: its network calls, in batch elements."""
        counts = [0] * self.num_tree_steps
        for path in self.paths:
            for number, nodes in enumerate(path.num_nodes()):
                # the states that a fork begins at are those of its parent
                counts[path.start + number] += 0 if number == 0 and path.parent is not None else nodes
        return counts

    @property
    def num_rollout_calls(self) -> int:
        """The number of network calls of a rollout, in batch elements."""
        return sum(self.num_nodes())

    @property
    def num_update_calls(self) -> int:
        """The number of network calls of one pass over the decisions: one for each state before a decision."""
        at_steps = sum(
            nodes
            for path in self.paths
            for nodes, step in zip(path.num_nodes(), path.steps, strict=False)  # a tail has calls and no steps
            if step.is_decision
        )
        return at_steps + (0 if self.neighbors is None else self.neighbors.num_calls)

    @property
    def max_next_states(self) -> int:
        """The largest number of next states behind one network call of an update; 0 without decisions."""
        of_steps = [step.branch for path in self.paths for step in path.steps if step.is_decision]
        of_anchors = [self.roots] if self.neighbors is not None and self.neighbors.moves else []
        return max([*of_steps, *of_anchors], default=0)

    @property
    def forwards_per_call(self) -> int:
        """2 with classifier-free guidance, else 1."""
        return 1 if self.guidance_scale == 1 else 2

    @property
    def is_bound(self) -> bool:
        return False

    @property
    def shared_work(self) -> Mapping[str, int]:
        """The calls of a rollout in which each member is sampled alone; empty where a reward selects states."""
        alone = sum(path.num_ends * path.end for path in self.paths)
        return {} if self.choices else {"calls of a rollout without sharing": alone}


def _paths(path: Plan | Fork, as_path: Path, number: int) -> Iterator[Path]:
    """Yields the path, whose place in `Plan.paths` is `number`, and all paths that leave it."""
    yield as_path
    nodes, place = as_path.num_nodes(), number + 1
    for index, fork in enumerate(path.forks):
        start, name = as_path.start + fork.at, (*as_path.name, index)
        begun = Path(fork.steps, fork.group, number, start, nodes[fork.at], name, fork.tail)
        own = list(_paths(fork, begun, place))
        yield from own
        place += len(own)


def _kept(count: int, choice: Choice | None) -> int:
    """Returns how many of `count` states a choice keeps.

    Raises ValueError where `choice.of` does not divide `count`.
    """
    if choice is None:
        return count
    if count % choice.of:
        raise ValueError(f"a choice among every {choice.of} states needs a multiple of {choice.of} states, got {count}")
    return count // choice.of * choice.keep


def _check_path(path: Plan | Fork, first_fork: int) -> None:
    """Raises ValueError where a fork leaves the path at no state of it, or two trained steps leave the same states."""
    if path.steps and path.tail and path.tail.sigmas[0] != path.steps[-1].sigma_next:
        raise ValueError(
            f"a tail must begin where the steps end, at {path.steps[-1].sigma_next}, got {path.tail.sigmas[0]}"
        )
    for fork in path.forks:
        if not first_fork <= fork.at < len(path.steps):
            raise ValueError(
                f"a fork must leave a path of {len(path.steps)} steps before one of its steps {first_fork} to "
                f"{len(path.steps) - 1}, got at {fork.at}"
            )
        level = path.steps[fork.at].sigma
        if fork.steps[0].sigma != level:
            raise ValueError(f"a fork at sigma {level} must begin there, got sigma {fork.steps[0].sigma}")
        decided = [
            step.is_decision for step in (path.steps[fork.at], *(f.steps[0] for f in path.forks if f.at == fork.at))
        ]
        if sum(decided) > 1:
            raise ValueError(
                f"two trained random steps leave the states at sigma {level}: make it one with more children"
            )
    if path.group < 0:
        raise ValueError(f"the groups of a plan are numbered from 0, got {path.group}")
