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

SMALLEST_STD = 1e-15  # its square, which log-probs divide by, is still one of float32


@dataclass(frozen=True)
class Transition:
    """One step of a sampler, x' = state * x + velocity * v(x) + std * z with z ~ N(0, I).

    Every published kernel is linear in the latent x and the predicted velocity v, so three numbers say all of it.
    `std` is 0 for a deterministic step, which has no log-probability.
    """

    state: float
    velocity: float
    std: float

    def __post_init__(self) -> None:
        if not self.std >= 0:
            raise ValueError(f"the standard deviation of a step must be at least 0, got {self.std}")
        if 0 < self.std < SMALLEST_STD:
            raise ValueError(f"the noise of a step, of standard deviation {self.std:g}, is too small for float32")

    def mean(self, latents: Tensor, velocity: Tensor) -> Tensor:
        """Mean of the next latents, the shape of `latents`."""
        return self.state * latents + self.velocity * velocity


@dataclass(frozen=True)
class Step:
    """A step from noise level `sigma` to `sigma_next` < sigma, both in [0, 1]; each node splits into `branch` children.

    A random step that is not trained explores without being a decision (DanceGRPO trains a share of its steps).
    """

    sigma: float
    sigma_next: float
    transition: Transition
    branch: int = 1
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
        return self.transition.std > 0

    @property
    def is_decision(self) -> bool:
        return self.is_random and self.is_trained


SolverName = Literal["dpmpp_2m", "unipc", "heun"]


@dataclass(frozen=True)
class Tail:
    """Deterministic steps from noise level to noise level by a solver, nothing of which is a decision.

    `dpmpp_2m`: DPM-Solver++(2M) (Lu et al. 2022, arXiv 2211.01095, algorithm 2); `unipc`: UniPC of order 2 with its
    corrector (Zhao et al. 2023, arXiv 2302.04867); `heun`: Heun's method (Karras et al. 2022, arXiv 2206.00364,
    algorithm 1), which calls the network twice for each step but the last.
    """

    solver: SolverName
    sigmas: tuple[float, ...]  # n + 1 levels of n steps, falling within [0, 1]

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
    """The members of a group begin at sqrt(1 - spread^2) base + spread own: one base noise, and noise of each.

    Their variance is that of the noise. A spread of 1 is noise of their own, one of 0 the same for all.

    A decision is which member to go on as: at each network call of `moves` the step from the state of each member in
    `anchors` says where that one would be next, and the next states of all members stand beside it as if drawn from
    there. So one call has as many draws as the group has members. The std of a step, which is not added to anything, is
    how far off such a draw may be.
    """

    spread: float
    anchors: tuple[int, ...] = ()  # members, ascending
    moves: tuple[tuple[int, Step], ...] = ()  # by the number of the network call, ascending

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
        """ValueError unless a group of so many members has the anchors and makes the steps, at levels [calls + 1]."""
        if self.anchors[-1] >= roots:
            raise ValueError(f"anchors are members of a group of {roots}, got {list(self.anchors)}")
        ways = list(pairwise(levels))
        for number, step in self.moves:
            if not (0 <= number < len(ways) and ways[number] == (step.sigma, step.sigma_next)):
                raise ValueError(f"the step from an anchor at call {number} must lead as that of the plan, got {step}")

    def mixed(self, base: Tensor, own: Tensor) -> Tensor:
        """The initial noise of n members [n, ...], of the base [...] and what is their own [n, ...]."""
        return math.sqrt(1 - self.spread**2) * base + self.spread * own

    def move(self, number: int) -> Step | None:
        """The step at which anchors are compared with the members behind a network call, if they are."""
        return next((step for call, step in self.moves if call == number), None)

    @property
    def num_calls(self) -> int:
        """Network calls of one pass over the decisions."""
        return len(self.anchors) * len(self.moves)


# Rewards [n, of, J] float64 of `of` states each, at the choices on the way of each and last at this one, NaN where it
# passed none; how many of them go on; randomness of this choice alone -> their places [n, keep] int64.
Rule = Callable[[Tensor, int, torch.Generator], Tensor]


@dataclass(frozen=True)
class Choice:
    """Of each `of` states side by side `keep` go on, some maybe more than once, as a rule says of their rewards.

    The reward judges the clean latents that the network estimates at a state, or those at the end of the path. The
    choice stands behind network call `at` of its path (from 0) and before the step from there; at the number of calls:
    behind the last step.
    """

    at: int
    of: int
    keep: int
    rule: Rule
    reward: Reward

    def __post_init__(self) -> None:
        if self.at < 0 or self.of < 1 or self.keep < 1:
            raise ValueError(f"a choice keeps at least 1 of at least 1 state, got {self.keep} of {self.of}")


@dataclass(frozen=True)
class Fork:
    """Another way on from the states before step `at` of a path, whose network calls it shares with the path's step.

    `steps` lead to its ends, on a grid of their own, and `tail` behind them; `forks` leave it in turn, at places
    counted in its steps. `group` numbers the comparison group of its ends within the draw (see `keys.subgroup`).
    """

    at: int
    steps: tuple[Step, ...]
    forks: tuple["Fork", ...] = ()
    group: int = 0
    tail: Tail | None = None

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a fork needs steps, got none")
        _check_path(self, first_fork=1)


@dataclass(frozen=True)
class Path:
    """One way through a plan, from where it leaves its parent to its ends, which are samples."""

    steps: tuple[Step, ...]
    group: int  # of its ends, or of the first of them where they are in several
    parent: int | None  # the path it leaves, by its place in `Plan.paths`
    start: int  # steps of the tree before its own first
    num_starts: int  # states it begins at
    name: tuple[int, ...]  # the forks that lead to it, by their places: which noise it draws
    tail: Tail | None = None
    choices: tuple[Choice, ...] = ()
    neighbors: Neighbors | None = None
    num_groups: int = 1  # that its ends fall into, as many in each, one after the other

    @property
    def groups(self) -> list[int]:
        """The comparison group of each of its ends."""
        return [self.group + place * self.num_groups // self.num_ends for place in range(self.num_ends)]

    @property
    def levels(self) -> tuple[float, ...]:
        """The noise level of each of its network calls."""
        return (*(step.sigma for step in self.steps), *(() if self.tail is None else self.tail.calls))

    @property
    def end(self) -> int:
        """The number of the network call behind its own, counted from that of the tree's first."""
        return self.start + len(self.levels)

    @property
    def last_level(self) -> float:
        """Where it ends."""
        return self.steps[-1].sigma_next if self.tail is None else self.tail.sigmas[-1]

    def choice(self, at: int) -> Choice | None:
        """What is chosen behind its network call `at`, or at its end."""
        return next((choice for choice in self.choices if choice.at == at), None)

    def _states(self) -> list[int]:
        """States at each network call, and at the end before a choice is made there."""
        counts = [self.num_starts]
        for number in range(len(self.levels)):
            branch = self.steps[number].branch if number < len(self.steps) else 1
            counts.append(_kept(counts[-1], self.choice(number)) * branch)
        return counts

    def num_nodes(self) -> list[int]:
        """States that each of its network calls is made at."""
        return self._states()[:-1]

    @property
    def num_ends(self) -> int:
        return _kept(self._states()[-1], self.choice(len(self.levels)))


@dataclass(frozen=True)
class Plan:
    """How one group is drawn: `roots` initial latents, then a tree of steps. Each leaf is a sample.

    The tree is a path of `steps` that other paths may leave (`forks`), and others those; `group` and those of the forks
    say which ends are compared with each other. A path may end in a `tail`, which needs no steps before it. `choices`
    are made on the way of a plan without forks, at ascending places. `neighbors` says how near one another its roots
    are, and where they are compared. With `by_root` the ends that come of different roots are not compared.
    `guidance_scale` is that of classifier-free guidance:
    v = v_negative + scale * (v_prompt - v_negative); 1 is without, and makes one network call where others make two.
    """

    roots: int
    steps: tuple[Step, ...]
    guidance_scale: float = 1.0
    forks: tuple[Fork, ...] = ()
    group: int = 0
    tail: Tail | None = None
    choices: tuple[Choice, ...] = ()
    neighbors: Neighbors | None = None
    by_root: bool = False

    def __post_init__(self) -> None:
        if self.roots < 1 or not (self.steps or self.tail):
            raise ValueError(f"a plan needs roots and steps, got {self.roots} roots and {len(self.steps)} steps")
        _check_path(self, first_fork=0)
        if self.by_root and (self.choices or self.neighbors is not None):
            raise ValueError("ends of a plan that makes choices, or has neighbours, are compared whatever their roots")
        if self.choices and self.forks:
            raise ValueError("a plan with forks makes no choices: the ends of its paths are compared with each other")
        places = [choice.at for choice in self.choices]
        allowed = [*range(len(self.steps) + 1), len(self.paths[0].levels)]  # a solver remembers the states it left
        if places != sorted(set(places)) or not set(places) <= set(allowed):
            raise ValueError(f"choices stand behind calls of {allowed}, ascending, got {places}")
        if self.neighbors is not None and self.neighbors.moves:
            is_tree = self.forks or self.choices or any(step.branch > 1 or step.is_decision for step in self.steps)
            if is_tree or (self.tail is not None and self.tail.solver == "heun"):
                raise ValueError("members beside anchors go a step for each call, none branching or trained; not heun")
            self.neighbors.check(self.roots, (*self.paths[0].levels, self.paths[0].last_level))

    @cached_property
    def paths(self) -> tuple[Path, ...]:
        """All ways through the tree: its own, then each fork followed by the forks of that."""
        own = Path(self.steps, self.group, None, 0, self.roots, (), self.tail, self.choices, self.neighbors)
        paths = _paths(self, own, 0)
        if not self.by_root:
            return tuple(paths)
        return tuple(replace(path, group=path.group * self.roots, num_groups=self.roots) for path in paths)

    @property
    def num_compared(self) -> int:
        """Samples that are compared with each other, in the smallest of its groups."""
        return min(path.num_ends // path.num_groups for path in self.paths)

    @property
    def is_plain(self) -> bool:
        """Whether all its steps are its own transitions, one after the other, and the random ones its decisions: no
        solver, no choices, no anchors."""
        has_anchors = self.neighbors is not None and bool(self.neighbors.moves)
        return not (self.choices or has_anchors) and all(path.tail is None for path in self.paths)

    @property
    def num_tree_steps(self) -> int:
        """Steps of the whole tree one after the other: how often the network is called, on batches of states."""
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
        """States at each step of the tree = network evaluations of that step (batch elements, guidance apart)."""
        counts = [0] * self.num_tree_steps
        for path in self.paths:
            for number, nodes in enumerate(path.num_nodes()):
                # the states that a fork begins at are those of its parent
                counts[path.start + number] += 0 if number == 0 and path.parent is not None else nodes
        return counts

    @property
    def num_rollout_calls(self) -> int:
        """Network evaluations (batch elements) of a rollout of one group."""
        return sum(self.num_nodes())

    @property
    def num_update_calls(self) -> int:
        """Network evaluations of one pass over the group's decisions: one for each state a trained step starts from."""
        drawn = sum(
            nodes
            for path in self.paths
            for nodes, step in zip(path.num_nodes(), path.steps, strict=False)  # a tail has calls and no steps
            if step.is_decision
        )
        return drawn + (0 if self.neighbors is None else self.neighbors.num_calls)

    @property
    def max_next_states(self) -> int:
        """Next states beside one network call of an update, where there are the most; 0 without decisions."""
        drawn = [step.branch for path in self.paths for step in path.steps if step.is_decision]
        beside = [self.roots] if self.neighbors is not None and self.neighbors.moves else []
        return max([*drawn, *beside], default=0)

    @property
    def forwards_per_call(self) -> int:
        """Classifier-free guidance evaluates the network twice."""
        return 1 if self.guidance_scale == 1 else 2

    @property
    def is_bound(self) -> bool:
        return False

    @property
    def shared_work(self) -> Mapping[str, int]:
        """Beside `num_rollout_calls`, the calls where every member is drawn alone; none where a reward chooses."""
        alone = sum(path.num_ends * path.end for path in self.paths)
        return {} if self.choices else {"calls of a rollout without sharing": alone}


def _paths(path: Plan | Fork, as_path: Path, number: int) -> Iterator[Path]:
    """The path, which stands at place `number` of all, and what leaves it."""
    yield as_path
    nodes, place = as_path.num_nodes(), number + 1
    for index, fork in enumerate(path.forks):
        start, name = as_path.start + fork.at, (*as_path.name, index)
        begun = Path(fork.steps, fork.group, number, start, nodes[fork.at], name, fork.tail)
        own = list(_paths(fork, begun, place))
        yield from own
        place += len(own)


def _kept(count: int, choice: Choice | None) -> int:
    """How many of so many states go on. Raises ValueError for a choice among more than there are side by side."""
    if choice is None:
        return count
    if count % choice.of:
        raise ValueError(f"a choice among {choice.of} states each does not go with {count} states")
    return count // choice.of * choice.keep


def _check_path(path: Plan | Fork, first_fork: int) -> None:
    """Raises ValueError where a fork does not leave the path at one of its states, or chooses twice from one state."""
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
