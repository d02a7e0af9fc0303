"""The paths of flow trees during sampling: their steps and noise, and the states from which each continues."""

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
    """One path of the plan of one group, and the key of its noise."""

    plan: int
    path: Path
    parent: int | None  # the path state it leaves
    key: GroupKey

    def step(self, tree_step: int) -> Step:
        """Returns the step of the path at a tree step.

        Behind the steps of the path a solver makes the network calls; a stand-in step has the level of the call.
        """
        number = tree_step - self.path.start
        if number < len(self.path.steps):
            return self.path.steps[number]
        level = self.path.levels[number]
        return Step(level, 0.0, Transition(1.0, -level, 0.0))

    def tail(self, tree_step: int) -> tuple[Tail, int] | None:
        """Returns the tail that the path is in and the tree step at which the tail began; None before the tail."""
        begin = self.path.start + len(self.path.steps)
        return None if self.path.tail is None or tree_step < begin else (self.path.tail, begin)

    def noise(self, tree_step: int, count: int, shape: tuple[int, ...]) -> Tensor:
        """Returns the noise [count, *shape] of the children at a tree step; 0 for a step without noise."""
        if not self.step(tree_step).is_random:
            return torch.zeros(count, *shape)
        fork: tuple[int | str, ...] = ("fork", *self.path.name) if self.path.name else ()
        return normal(self.key.seed_for(*fork, "step", tree_step), (count, *shape))


@dataclass(frozen=True)
class Frontier:
    """The present states of all active path states, and the decisions that led to each state."""

    latents: Tensor  # [n, ...]
    rows: Mapping[int, range]  # the states of each active path state, which has begun and not ended
    taken: Tensor  # [n, tree steps, 2] int64, on the CPU: call and edge of each decision; -1 where there was none
    passed: Tensor  # [n, tree steps, 4] int64, on the CPU: numbers of a trajectory recorder; without one [n, 0, 4]
    judged: Tensor  # [n, J] float64, on the CPU: rewards of each at the J choices so far, NaN where it had none

    def holder(self, path_states: "Sequence[PathState]", index: int) -> range:
        """Returns the states from which a path state continues: its own, or at its begin those of its parent."""
        while index not in self.rows:
            parent = path_states[index].parent
            assert parent is not None, "roots have states"
            index = parent
        return self.rows[index]

    def without(self, ends: Sequence[int]) -> "tuple[Frontier, dict[int, Frontier]]":
        """Returns the frontier without the path states `ends`, and the frontier of each of these alone."""
        if not ends:
            return self, {}
        return self._of([index for index in self.rows if index not in ends]), {end: self._of([end]) for end in ends}

    def _of(self, indices: Sequence[int]) -> "Frontier":
        parts = [torch.arange(self.rows[index].start, self.rows[index].stop) for index in indices]
        rows = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)
        return self.of_rows(rows, ranges(indices, [len(part) for part in parts]), self.judged)

    def of_rows(self, rows: Tensor, own: Mapping[int, range], judged: Tensor) -> "Frontier":
        """Returns the frontier of the states `rows` [k], which belong to the path states `own`.

        `judged` [n, J]: rewards of all n states at the choices so far.
        """
        latents = self.latents[rows.to(self.latents.device)]
        return Frontier(latents, own, self.taken[rows], self.passed[rows], judged[rows])


@dataclass(frozen=True)
class TreeStep:
    """One step of all trees: the active path states, and the states from which each takes its step."""

    number: int
    path_states: Sequence[PathState]  # m
    indices: Sequence[int]  # m: their places among all path states
    sources: Sequence[range]  # m: the rows of the frontier that each continues from
    has_own: Sequence[bool]  # m: whether these are its own states; else the path state begins here

    @classmethod
    def of(cls, number: int, path_states: Sequence[PathState], frontier: Frontier) -> "TreeStep":
        """Returns the step of all path states that are active at a tree step."""
        moving = [
            index
            for index, path_state in enumerate(path_states)
            if path_state.path.start <= number < path_state.path.end
        ]
        sources = [frontier.holder(path_states, index) for index in moving]
        return cls(number, [path_states[i] for i in moving], moving, sources, [i in frontier.rows for i in moving])

    @cached_property
    def steps(self) -> list[Step]:
        """Returns the step of each path state [m]."""
        return [path_state.step(self.number) for path_state in self.path_states]

    @cached_property
    def counts(self) -> Tensor:
        """Returns the number of states that each path state continues from [m]."""
        return torch.tensor([len(rows) for rows in self.sources])

    def spread(self, values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        """Repeats a value of each path state [m] for each of its states [n]."""
        return torch.tensor(values, dtype=dtype).repeat_interleave(self.counts, 0)

    def noise(self, shape: torch.Size) -> Tensor:
        """Returns the noise [c, *shape] of the children of all states; 0 where a step has none."""
        parts = [
            path_state.noise(self.number, len(rows) * step.branch, tuple(shape))
            for path_state, rows, step in zip(self.path_states, self.sources, self.steps, strict=True)
        ]
        return torch.cat(parts)


def path_states_of(plans: Sequence[Plan], keys: Sequence[GroupKey]) -> list[PathState]:
    """Returns the path states of all plans, plan by plan."""
    path_states: list[PathState] = []
    for number, (plan, key) in enumerate(zip(plans, keys, strict=True)):
        first = len(path_states)
        path_states += [
            PathState(number, path, None if path.parent is None else first + path.parent, key) for path in plan.paths
        ]
    return path_states


def ranges(indices: Sequence[int], sizes: Sequence[int]) -> dict[int, range]:
    """Returns consecutive ranges of rows of these sizes, by index."""
    ends = list(accumulate(sizes))
    return {index: range(end - size, end) for index, size, end in zip(indices, sizes, ends, strict=True)}
