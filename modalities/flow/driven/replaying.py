"""Network arguments that are captured once for each prompt and used again with other states and noise levels.

Where that gives what the paused pipeline gives, all prompts and branches of guidance share one network call, and no
paused call is resumed.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from mmrl.core.keys import normal

from .driver import Driver, Key
from .network_calls import Learned
from .probing import Tolerance, difference
from .recorded_call import NotReplayed, RecordedCall
from .rows import Axis, Path
from .stand_ins import NetworkCall

_SEED = 23
_LEVELS = (0.9, 0.02, 0.98, 0.5)  # timesteps are fitted to the first two
_EXACT = 1e-5  # relative to the largest value: of fits
# Of two branches of guidance: each far above the other, and on both sides of rules about the length of their sum.
_MIXTURES = (((1, 0), (0, 1)), ((100, 0), (0, 1)), ((1, 0), (0, 100)), ((1, 0), (1.4, 0)), ((1.4, 0), (1, 0)))


@dataclass(frozen=True)
class StateInput:
    """An argument that is `scale` times the state; with `axis`, what lies behind the state on it depends on the prompt
    alone."""

    scale: float
    axis: int | None

    @classmethod
    def fit(cls, leaf: Tensor, other: Tensor, states: Sequence[Tensor]) -> Self:
        """Returns how two states [1, ...] lie in an argument's values. Raises NotReplayed."""
        state = states[0]
        longer = [n for n, (a, b) in enumerate(zip(leaf.shape, state.shape, strict=False)) if n and a != b]
        if leaf.dim() != state.dim() or len(longer) > 1 or any(leaf.shape[n] < state.shape[n] for n in longer):
            raise NotReplayed("its network is given the state in another shape")
        axis = longer[0] if longer else None
        head = leaf if axis is None else leaf.narrow(axis, 0, state.shape[axis])
        scale = _rounded((head[:1].double() * state).sum() / state.double().square().sum())
        made = cls(float(scale), axis)
        for value, given in zip((leaf, other), states, strict=True):
            if difference(made.value(value, given).double(), value.double()) > _EXACT:
                raise NotReplayed("its network is given more than a multiple of the state")
        return made

    def value(self, leaf: Tensor, states: Tensor) -> Tensor:
        """Returns the argument for states [n, ...], from its captured value for one."""
        own = (self.scale * states).to(leaf.dtype).repeat(leaf.shape[0], *[1] * (states.dim() - 1))
        if self.axis is None:
            return own
        size = states.shape[self.axis]
        rest = leaf.narrow(self.axis, size, leaf.shape[self.axis] - size)
        return torch.cat([own, rest.repeat_interleave(len(states), 0)], self.axis)


@dataclass(frozen=True)
class TimeInput:
    """An argument that is an affine function of the timestep, in each of its elements."""

    start: Tensor  # [branches, ...] float64
    slope: Tensor  # the same

    @classmethod
    def fit(cls, values: Sequence[Tensor], times: Sequence[Tensor]) -> Self:
        """Returns the function that goes through all values. Raises NotReplayed."""
        exact, at = [value.double() for value in values], [time.double() for time in times]
        slope = _rounded((exact[1] - exact[0]) / (at[1] - at[0]))
        start = exact[0] - slope * at[0]
        start = torch.where(start.abs() < _EXACT * exact[0].abs().max(), torch.zeros_like(start), _rounded(start))
        made = cls(start, slope)
        for value, time in zip(values, times, strict=True):
            if difference(made.value(value, time.reshape(1)).double(), value.double()) > _EXACT:
                raise NotReplayed("an argument of its network is no affine function of the timestep")
        return made

    def value(self, leaf: Tensor, times: Tensor) -> Tensor:
        """Returns the argument for timesteps [n]."""
        each = times.double().repeat(len(self.start)).view(-1, *[1] * (self.start.dim() - 1))
        spread = [part.to(each.device).repeat_interleave(len(times), 0) for part in (self.start, self.slope)]
        return (spread[0] + spread[1] * each).to(leaf.dtype)


@dataclass(frozen=True)
class Replay:
    """How the network calls and the output for the scheduler follow from state, level and a prompt's captured calls."""

    inputs: tuple[Mapping[Path, StateInput | TimeInput], ...]  # of each call of an iteration
    branches: tuple[int, ...]  # of guidance, in each call
    weights: tuple[float, ...]  # of the branches, in the sum that the scheduler is given
    shape: tuple[int, ...]  # of an output for the scheduler: the first elements of a branch on each axis

    def calls(
        self, learned: Learned, captured: Sequence[NetworkCall], states: Tensor, times: Tensor
    ) -> list[NetworkCall]:
        """Returns the calls of one prompt for states [n, ...] at timesteps [n]."""
        made = []
        for call, inputs in zip(captured, self.inputs, strict=True):
            rows, value = learned.form(call).call_rows, (call.args, call.kwargs)
            leaves = rows.leaves(value)
            found = {
                path: entry.value(leaves[path], states if isinstance(entry, StateInput) else times)
                for path, entry in inputs.items()
            }
            args, kwargs = rows.replaced(value, found)
            made.append(replace(call, args=args, kwargs=kwargs))
        return made

    def output(self, outputs: Sequence[Tensor]) -> Tensor:
        """Returns the output for the scheduler [n, ...], float32, from those of the calls."""
        return _sum(_branches(outputs, self.branches, self.shape), self.weights)


@dataclass
class Replays:
    """The replays of a driven pipeline by guidance scale, and the captured calls of its prompts."""

    driver: Driver
    prompts: Sequence[int]  # numbers of two prompts of different lengths, with which it is probed
    tolerance: Tolerance  # of outputs against those of paused calls
    capacity: int  # prompts whose calls are kept, where one evaluation has no more
    _by_scale: dict[float | None, Replay | NotReplayed] = field(default_factory=dict)
    _captured: OrderedDict[Any, list[NetworkCall]] = field(default_factory=OrderedDict)

    def refusal(self, scale: float | None) -> str | None:
        """Returns why the pipeline is driven at a guidance scale; None: it is replayed."""
        if scale not in self._by_scale:
            try:
                with torch.no_grad():
                    self._by_scale[scale] = self._learn(scale)
            except NotReplayed as reason:
                self._by_scale[scale] = reason
        found = self._by_scale[scale]
        return None if isinstance(found, Replay) else str(found)

    def evaluate(self, states: Tensor, sigma: Tensor, prompts: Sequence[int], scale: float | None) -> Tensor:
        """Returns what `Driver.evaluate` returns."""
        if self.refusal(scale) is not None:
            return self.driver.evaluate(states, sigma, prompts, scale)
        found = self._by_scale[scale]
        assert isinstance(found, Replay), "there is no refusal"
        return self._replayed(found, states, sigma, prompts, scale)

    def _replayed(
        self, found: Replay, states: Tensor, sigma: Tensor, prompts: Sequence[int], scale: float | None
    ) -> Tensor:
        learned, levels = self.driver.learned[scale is not None], sigma.tolist()
        by_level = {level: self.driver.time_of(level) for level in set(levels)}
        alike: dict[int, list[int]] = {}
        for row, prompt in enumerate(prompts):
            alike.setdefault(prompt, []).append(row)
        order = torch.tensor([row for rows in alike.values() for row in rows], device=states.device)
        times = torch.stack([by_level[levels[row]] for rows in alike.values() for row in rows])
        counts = [len(rows) for rows in alike.values()]
        calls: list[NetworkCall] = []
        for prompt, own, at in zip(alike, states[order].split(counts), times.split(counts), strict=True):
            calls += found.calls(learned, self._calls(prompt, scale), own, at)
        answers = self.driver.answer(learned, calls)
        outputs = [_tensor(learned, call, answer) for call, answer in zip(calls, answers, strict=True)]
        num_calls = len(found.inputs)
        while len(self._captured) > max(self.capacity, len(alike)):
            self._captured.popitem(last=False)
        made = [found.output(outputs[n : n + num_calls]) for n in range(0, len(outputs), num_calls)]
        return torch.cat(made)[order.argsort()]

    def _calls(self, prompt: int, scale: float | None) -> list[NetworkCall]:
        """Returns the calls of one sample of a prompt, captured once."""
        key = Key(prompt, scale, 1)
        if key not in self._captured:
            call = RecordedCall(self.driver, key)
            with torch.no_grad(), torch.inference_mode(False):
                self._captured[key] = call(call.state(0), _LEVELS[0])[0]
            call.close()
        self._captured.move_to_end(key)
        return self._captured[key]

    def _learn(self, scale: float | None) -> Replay:
        """Finds the replay at a guidance scale, and holds it against paused calls. Raises NotReplayed."""
        if len(self.driver.networks) > 1:
            raise NotReplayed("it has several networks, one for each range of noise levels")
        if len(self.driver.shapes) > 1:
            raise NotReplayed("its state has several parts")
        learned = self.driver.learned[scale is not None]
        call = RecordedCall(self.driver, Key(self.prompts[0], scale, 1))
        try:
            made = _replay_of(learned, call)
        finally:
            call.close()
        states = normal(_SEED, (4, *self.driver.latent_shape)).to(call.device)
        sigma = torch.tensor([0.9, 0.9, 0.6, 0.3], device=call.device)
        numbers = [self.prompts[n] for n in (0, 1, 0, 1)]
        if {len(made.inputs)} != {len(self._calls(number, scale)) for number in numbers}:
            raise NotReplayed("its network calls depend on the prompt")
        wanted = self.driver.evaluate(states, sigma, numbers, scale)
        try:
            got = self._replayed(made, states, sigma, numbers, scale)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:  # whatever a network raises for shapes
            raise NotReplayed(f"its network cannot be called for all branches and prompts: {error}") from error
        if not self.tolerance.holds(got, wanted):
            raise NotReplayed(f"its outputs then differ by {self.tolerance.difference(got, wanted):.1e}")
        return made


def _replay_of(learned: Learned, recorded: RecordedCall) -> Replay:
    """Returns the replay of a paused call. Raises NotReplayed."""
    first, second = recorded.state(0), recorded.state(1)
    by_level = [recorded(first, sigma)[0] for sigma in _LEVELS]
    moved, shape = recorded(second, _LEVELS[0])
    kinds = {tuple((call.network, call.names) for call in calls) for calls in (*by_level, moved)}
    if len(kinds) != 1:
        raise NotReplayed("its network calls depend on the noise level")
    times = [recorded.time_of(sigma) for sigma in _LEVELS]
    inputs, branches = [], []
    for n, call in enumerate(by_level[0]):
        rows = learned.form(call).call_rows
        leaves = [rows.leaves((calls[n].args, calls[n].kwargs)) for calls in (*by_level, moved)]
        entries: dict[Path, StateInput | TimeInput] = {}
        for path, axis in rows.axes.items():
            own = [found[path] for found in leaves]
            by_state, by_time = not _is_same(own[0], own[-1]), any(not _is_same(own[0], value) for value in own[1:-1])
            if by_state and by_time:
                raise NotReplayed("an argument of its network depends on both the state and the noise level")
            if not (by_state or by_time):
                continue
            _check_rows(own[0], axis)
            entries[path] = (
                StateInput.fit(own[0], own[-1], (first, second)) if by_state else TimeInput.fit(own[:-1], times)
            )
        if not any(isinstance(entry, StateInput) for entry in entries.values()):
            raise NotReplayed("a call of its network is not given the state")
        inputs.append(entries)
        branches.append(rows.count((call.args, call.kwargs)))
    weights = _weights(learned, recorded, by_level[0], branches)
    return Replay(tuple(inputs), tuple(branches), weights, tuple(shape.shape[1:]))


def _weights(
    learned: Learned, recorded: RecordedCall, calls: Sequence[NetworkCall], branches: Sequence[int]
) -> tuple[float, ...]:
    """Returns the weights of the branches in the output for the scheduler. Raises NotReplayed where it is no sum."""
    if sum(branches) > 2:
        raise NotReplayed("it has more than two branches of guidance")
    weights: tuple[float, ...] | None = None
    for n, mixture in enumerate(_MIXTURES):
        outputs, seen = [], list[Tensor]()
        for call, count in zip(calls, branches, strict=True):
            blank = learned.form(call).output
            like = _tensor(learned, call, blank)
            drawn = [normal(_SEED + 10 * n + m, tuple(like.shape[1:])).to(like) for m in range(2)]
            rows = [a * drawn[0] + b * drawn[1] for a, b in mixture[len(seen) : len(seen) + count]]
            seen.append(torch.stack(rows))
            (path,) = _paths(learned, call, blank)
            outputs.append(learned.form(call).output_rows.replaced(blank, {path: seen[-1].clone()}))
            seen += [seen[-1]] * (count - 1)  # so that the length counts branches
        each = [seen[sum(branches[:k])] for k in range(len(branches))]
        _, got = recorded(recorded.state(n % 2), _LEVELS[n % len(_LEVELS)], outputs)
        if got.dim() != each[0].dim() or any(a > b for a, b in zip(got.shape[1:], each[0].shape[1:], strict=True)):
            raise NotReplayed("its output for the scheduler has another shape than the network's")
        parts = _branches(each, branches, tuple(got.shape[1:]))
        if weights is None:
            columns = torch.stack([part.flatten() for part in parts], 1).double().cpu()
            solved = torch.linalg.lstsq(columns, got.flatten().double().cpu()[:, None]).solution[:, 0]
            weights = tuple(_rounded(solved).tolist())
        # relative to what is summed: at a guidance scale of 3.5 the last mixture sums to 0
        size = max(abs(weight) * float(part.abs().max()) for part, weight in zip(parts, weights, strict=True))
        if not float((_sum(parts, weights) - got.float()).abs().max()) <= _EXACT * size:
            raise NotReplayed("its guidance is more than a weighted sum of its branches")
    assert weights is not None, "there are mixtures"
    return weights


def _branches(outputs: Sequence[Tensor], branches: Sequence[int], shape: Sequence[int]) -> list[Tensor]:
    """Returns the outputs [n, *shape] of each branch."""
    cut = (slice(None), *(slice(size) for size in shape))
    return [part[cut] for output, count in zip(outputs, branches, strict=True) for part in output.chunk(count)]


def _sum(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    return torch.stack([weight * part.float() for part, weight in zip(parts, weights, strict=True)]).sum(0)


def _paths(learned: Learned, call: NetworkCall, output: Any) -> list[Path]:
    leaves = learned.form(call).output_rows.leaves(output)
    return [path for path, leaf in leaves.items() if isinstance(leaf, Tensor)]


def _tensor(learned: Learned, call: NetworkCall, output: Any) -> Tensor:
    """Returns the tensor that an output is made of. Raises NotReplayed for several, or none."""
    rows, paths = learned.form(call).output_rows, _paths(learned, call, output)
    if len(paths) != 1 or rows.axes[paths[0]] != 0:
        raise NotReplayed("its network returns more than one tensor, or a list")
    found: Tensor = rows.leaves(output)[paths[0]]
    return found


def _check_rows(leaf: Any, axis: Axis) -> None:
    if not isinstance(leaf, Tensor) or axis != 0:
        raise NotReplayed("an argument of its network that depends on state or level has no row for each sample")


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.shape == other.shape and bool(torch.equal(one, other))
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=True)
        return type(one) is type(other) and len(one) == len(other) and all(_is_same(a, b) for a, b in pairs)
    return bool(one == other)


def _rounded(value: Tensor) -> Tensor:
    """Returns values with six digits: the factors of a pipeline are short, those of a fit are not exact."""
    digits = 10.0 ** (5 - value.abs().clamp(min=1e-30).log10().floor())
    return torch.where(value.abs() < 1e-9, torch.zeros_like(value), (value * digits).round() / digits)
