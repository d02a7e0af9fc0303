"""How a group is drawn, as a value: a flow's tree of steps on the noise grid."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from mmrl.core.rewards import Reward
from mmrl.plans.answers import PROMPT_READS, AnswerPlan, EpisodePlan
from mmrl.plans.groups import GroupPlan
from mmrl.plans.neighbors import Neighbors
from mmrl.plans.steps import Step, Tail, Transition

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


# what most look for here
__all__ = ["PROMPT_READS", "AnswerPlan", "EpisodePlan", "GroupPlan", "Step", "Tail", "Transition"]


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
