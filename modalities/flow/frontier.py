"""The paths of flow trees while they grow: their steps and noise, and the states that each goes on from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from mmrl.core.keys import GroupKey, normal
from mmrl.plans.flow import Path, Plan, Step, Tail, Transition


@dataclass(frozen=True)
class PathState:
    """One path of the plan of one group."""

    plan: int
    path: Path
    parent: int | None  # the path state it leaves
    key: GroupKey

    def step(self, tree_step: int) -> Step:
        """Behind the steps of the path, for a solver's network call, one that stands in for what the solver does."""
        number = tree_step - self.path.start
        if number < len(self.path.steps):
            return self.path.steps[number]
        level = self.path.levels[number]
        return Step(level, 0.0, Transition(1.0, -level, 0.0))

    def tail(self, tree_step: int) -> tuple[Tail, int] | None:
        """The tail that it is in, and when that began."""
        begin = self.path.start + len(self.path.steps)
        return None if self.path.tail is None or tree_step < begin else (self.path.tail, begin)

    def noise(self, tree_step: int, count: int, shape: tuple[int, ...]) -> Tensor:
        """Of its children, [count, *shape]."""
        if not self.step(tree_step).is_random:
            return torch.zeros(count, *shape)
        fork: tuple[int | str, ...] = ("fork", *self.path.name) if self.path.name else ()
        return normal(self.key.seed_for(*fork, "step", tree_step), (count, *shape))


@dataclass(frozen=True)
class Frontier:
    """The states at hand, state by state, and the decisions that led to each."""

    latents: Tensor  # [n, ...]
    rows: Mapping[int, range]  # of each path state that has begun and not ended
    taken: Tensor  # [n, tree steps, 2] int64, on the CPU: call and edge of each decision; -1 where there was none
    passed: Tensor  # [n, tree steps, 4] int64, on the CPU: what a recorder numbers; without one [n, 0, 4]
    judged: Tensor  # [n, J] float64, on the CPU: rewards at the choices on the way of each, NaN where it passed none

    def holder(self, path_states: "Sequence[PathState]", index: int) -> range:
        """The states that a path state goes on from: its own, or where it begins those of the path state that it
        leaves."""
        while index not in self.rows:
            parent = path_states[index].parent
            assert parent is not None, "roots have states"
            index = parent
        return self.rows[index]

    def without(self, ends: Sequence[int]) -> "tuple[Frontier, dict[int, Frontier]]":
        """The frontier without the path states `ends`, and each of these alone."""
        if not ends:
            return self, {}
        return self._of([index for index in self.rows if index not in ends]), {end: self._of([end]) for end in ends}

    def _of(self, indices: Sequence[int]) -> "Frontier":
        parts = [torch.arange(self.rows[index].start, self.rows[index].stop) for index in indices]
        rows = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)
        return self.of_rows(rows, ranges(indices, [len(part) for part in parts]), self.judged)

    def of_rows(self, rows: Tensor, own: Mapping[int, range], judged: Tensor) -> "Frontier":
        """The states `rows` [k] of it, now those of the path states `own`, where `judged` [n, J] is known of all."""
        latents = self.latents[rows.to(self.latents.device)]
        return Frontier(latents, own, self.taken[rows], self.passed[rows], judged[rows])


@dataclass(frozen=True)
class TreeStep:
    """What moves at one step of the tree: the path states under way, and the states that each goes on from."""

    number: int
    path_states: Sequence[PathState]  # m
    indices: Sequence[int]  # m: their places among all
    sources: Sequence[range]  # m: rows of the frontier
    has_own: Sequence[bool]  # m: whether these are its own; else it begins here

    @classmethod
    def of(cls, number: int, path_states: Sequence[PathState], frontier: Frontier) -> "TreeStep":
        moving = [
            index
            for index, path_state in enumerate(path_states)
            if path_state.path.start <= number < path_state.path.end
        ]
        sources = [frontier.holder(path_states, index) for index in moving]
        return cls(number, [path_states[i] for i in moving], moving, sources, [i in frontier.rows for i in moving])

    @cached_property
    def steps(self) -> list[Step]:
        return [path_state.step(self.number) for path_state in self.path_states]

    @cached_property
    def counts(self) -> Tensor:
        return torch.tensor([len(rows) for rows in self.sources])

    def spread(self, values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        """One value for each state, of values for each path state."""
        return torch.tensor(values, dtype=dtype).repeat_interleave(self.counts, 0)

    def noise(self, shape: torch.Size) -> Tensor:
        """Of the children of all states, [c, *shape]; 0 where a step has none."""
        parts = [
            path_state.noise(self.number, len(rows) * step.branch, tuple(shape))
            for path_state, rows, step in zip(self.path_states, self.sources, self.steps, strict=True)
        ]
        return torch.cat(parts)


def path_states_of(plans: Sequence[Plan], keys: Sequence[GroupKey]) -> list[PathState]:
    path_states: list[PathState] = []
    for number, (plan, key) in enumerate(zip(plans, keys, strict=True)):
        first = len(path_states)
        path_states += [
            PathState(number, path, None if path.parent is None else first + path.parent, key) for path in plan.paths
        ]
    return path_states


def ranges(indices: Sequence[int], sizes: Sequence[int]) -> dict[int, range]:
    """One range of rows after the other, `sizes` long."""
    ends = list(accumulate(sizes))
    return {index: range(end - size, end) for index, size, end in zip(indices, sizes, ends, strict=True)}
