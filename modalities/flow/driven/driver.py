"""A stock pipeline as a function of states, noise levels and prompts: its paused calls, and what answers them."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .network_calls import Batch, Learned, batches
from .paused_call import NotDriven, PausedCall
from .results import media_of
from .stand_ins import NetworkCall


class Inputs(Protocol):
    """Makes a copy of the pipeline and the arguments of its call."""

    def __call__(self, prompt: int, scale: float | None, copies: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """Returns both for `copies` samples of a prompt, by its number.

        `scale` None: without guidance. `seed`: of what the pipeline draws.
        """
        ...


class Key(NamedTuple):
    """What a paused call was made for."""

    prompt: int
    scale: float | None
    copies: int


@dataclass(frozen=True)
class Group:
    """Rows of a batch that one paused call serves: those of one prompt at one noise level."""

    key: Key
    sigma: float
    rows: tuple[int, ...]


@dataclass
class Driver:
    """A pipeline, driven. Everything but the pipeline's own code runs in the caller's thread."""

    pipeline: Any
    networks: tuple[str, ...]
    inputs: Inputs
    time_of: Callable[[float], Tensor]  # the scheduler's timestep of a noise level
    call_network: Callable[[str, tuple[Any, ...], Mapping[str, Any]], Any]
    capacity: int  # paused calls that are kept, and the most that are used at once
    maximum: Callable[[int], int] = lambda count: count  # over processes, where weights are sharded
    # images or videos of what the call returns, and the sound of videos where it is asked for
    results_of: Callable[[Any], list[Tensor]] = lambda result: [media_of(result)]
    encoding: Callable[[], AbstractContextManager[None]] = nullcontext  # in which a call may run its text encoders
    learned: dict[bool, Learned] = field(default_factory=dict)  # with guidance, and without
    shapes: tuple[tuple[int, ...], ...] = ()  # of the parts of one sample's state
    media_shape: tuple[int, ...] = ()  # of what one sample is decoded to
    decodes_many: bool = True  # else the stock code decodes one sample at a time
    seed: int = 0  # of what the pipeline draws before its loop, the same in all paused calls
    first_deviation: float = 1.0  # standard deviation of the first state, as the pipeline makes it
    num_network_calls: int = 0  # network calls so far, of any size
    _free: OrderedDict[Key, list[PausedCall]] = field(default_factory=OrderedDict)

    # paused calls

    def make(self, key: Key, answer: Callable[[NetworkCall], Any] | None = None) -> PausedCall:
        """Returns a new paused call. `answer`: of its network calls whose outputs lead nowhere."""
        pipeline, given = self.inputs(*key, self.seed)
        if answer is None:
            answer = self.learned[key.scale is not None].blank
        return self.opened(pipeline, given, answer)

    def opened(self, pipeline: Any, given: dict[str, Any], answer: Callable[[NetworkCall], Any]) -> PausedCall:
        """Returns a new paused call of a pipeline with arguments."""
        with self.encoding():
            return PausedCall(pipeline, self.networks, given, answer)

    def take(self, key: Key) -> PausedCall:
        """Returns a paused call that is kept, or a new one."""
        kept = self._free.get(key)
        while kept:
            call = kept.pop()
            if call.is_alive:
                return call
            call.close()
        return self.make(key)

    def put_back(self, key: Key, call: PausedCall) -> None:
        """Keeps a paused call for later; closes those that were not used for the longest time."""
        self._free.setdefault(key, []).append(call)
        self._free.move_to_end(key)
        for _ in range(sum(map(len, self._free.values())) - self.capacity):
            oldest = next(key for key, calls in self._free.items() if calls)
            self._free[oldest].pop(0).close()
        for empty in [key for key, calls in self._free.items() if not calls]:
            del self._free[empty]

    def close(self) -> None:
        """Closes all paused calls; they are made again where they are needed."""
        for calls in self._free.values():
            for call in calls:
                call.close()
        self._free.clear()

    # states

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Returns the shape of a state: its own for one part, [D] for several."""
        return self.shapes[0] if len(self.shapes) == 1 else (sum(map(_numel, self.shapes)),)

    def split(self, states: Tensor) -> list[Tensor]:
        """Returns the parts [n, ...] of states [n, ...]."""
        if len(self.shapes) == 1:
            return [states]
        flat = states.split([_numel(shape) for shape in self.shapes], 1)
        return [part.reshape(len(states), *shape) for part, shape in zip(flat, self.shapes, strict=True)]

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns states from their parts: the inverse of `split`."""
        return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], 1)

    # the network

    def evaluate(self, states: Tensor, sigma: Tensor, prompts: Sequence[int], scale: float | None) -> Tensor:
        """Returns the outputs for the scheduler [n, ...], float32.

        Args:
            states: [n, ...]. sigma: [n]. prompts: n numbers of prompts. scale: of guidance; None: without.
        Raises:
            NotDriven: the pipeline's loop did what it did not do before.
        """
        learned, parts = self.learned[scale is not None], self.split(states)
        waiting = self._groups(learned, sigma.tolist(), prompts, scale)
        outputs: dict[tuple[int, ...], list[Tensor]] = {}
        active: list[tuple[Group, PausedCall]] = []
        try:
            while True:
                if not active:
                    active, waiting = self._begin(waiting[: self.capacity], parts), waiting[self.capacity :]
                answers = self._answers(learned, [call.call for _, call in active if call.call is not None])
                if answers is None:
                    break
                going = []
                for (group, call), answer in zip(active, answers, strict=True):
                    found = call.reply(answer)
                    if found is None:
                        going.append((group, call))
                        continue
                    if any(len(part) != len(group.rows) for part in found):
                        counts = ", ".join(str(len(part)) for part in found)
                        raise NotDriven(f"it returns {counts} outputs for {len(group.rows)} samples")
                    outputs[group.rows] = found
                    self.put_back(group.key, call)
                active = going
        except BaseException:
            self._recover(active)
            raise
        order = torch.tensor([row for rows in outputs for row in rows], device=states.device).argsort()
        made = [torch.cat([found[n] for found in outputs.values()])[order] for n in range(len(parts))]
        return self.joined(made).float()

    def answer(self, learned: Learned, calls: Sequence[NetworkCall]) -> list[Any]:
        """Returns the outputs of network calls that no paused call waits for, joined into as few as possible."""
        answers = self._answers(learned, calls)
        self._answers(learned, [])  # tells other processes that this was all
        return answers or []

    def take_part(self) -> Tensor:
        """Takes part in one `evaluate` of the other processes. Returns 0, with a graph to the networks' weights."""
        learned = self.learned[False]
        outputs: list[Tensor] = []
        while True:
            counts = {name: self.maximum(0) for name in self.networks}
            if not any(counts.values()):
                break
            outputs += [self._dummy(learned, name) for name, count in counts.items() for _ in range(count)]
        return torch.stack([0 * output.sum() for output in outputs or [self._dummy(learned, self.networks[0])]]).sum()

    def _groups(
        self, learned: Learned, sigmas: Sequence[float], prompts: Sequence[int], scale: float | None
    ) -> list[Group]:
        alike: dict[Any, list[int]] = {}
        for row, (prompt, sigma) in enumerate(zip(prompts, sigmas, strict=True)):
            alike.setdefault((prompt, sigma, row if learned.mode == "single" else 0), []).append(row)
        return [
            Group(Key(prompt, scale, len(rows) if learned.mode == "copies" else 1), sigma, tuple(rows))
            for (prompt, sigma, _), rows in alike.items()
        ]

    def _begin(self, groups: Sequence[Group], parts: Sequence[Tensor]) -> list[tuple[Group, PausedCall]]:
        begun: list[tuple[Group, PausedCall]] = []
        try:
            rows = torch.tensor([row for group in groups for row in group.rows], device=parts[0].device)
            own = [part[rows].split([len(group.rows) for group in groups]) for part in parts] if groups else []
            times = {sigma: self.time_of(sigma) for sigma in {group.sigma for group in groups}}
            for n, group in enumerate(groups):
                call = self.take(group.key)
                begun.append((group, call))
                call.begin([part[n] for part in own], group.sigma, times[group.sigma])
        except BaseException:
            self._recover(begun)
            raise
        return begun

    def _answers(self, learned: Learned, calls: Sequence[NetworkCall]) -> list[Any] | None:
        """Returns the answers of the calls that wait; None where none waits in any process."""
        joined = batches(learned, calls)
        answers: list[Any] = [None] * len(calls)
        num_made, ghosts = 0, list[Tensor]()
        for name in self.networks:
            own = [batch for batch in joined if batch.network == name]
            count = self.maximum(len(own))
            num_made += count
            for batch in own:
                for member, answer in zip(batch.members, self._answer(batch), strict=True):
                    answers[member] = answer
            ghosts += [self._dummy(learned, name) for _ in range(count - len(own))]
        return answers if num_made else None

    def _answer(self, batch: Batch) -> list[Any]:
        self.num_network_calls += 1
        return batch.parted(self.call_network(batch.network, batch.args, batch.kwargs))

    def _dummy(self, learned: Learned, name: str) -> Tensor:
        """Calls a network on captured arguments, for the sake of other processes; returns its first output."""
        forms = {form.call.network: form for form in learned.forms.values()}
        form = forms.get(name, next(iter(forms.values())))
        output = self.call_network(name, form.call.args, form.call.kwargs)
        return next(leaf for leaf in form.output_rows.leaves(output).values() if isinstance(leaf, Tensor))

    def _recover(self, active: Sequence[tuple[Group, PausedCall]]) -> None:
        """Leads paused calls back after an error, which may be none of theirs; those that cannot go on are closed."""
        for group, call in active:
            try:
                call.rewind()
            except Exception:  # whatever the pipeline raises: the first error is on its way to the caller
                call.close()
            else:
                self.put_back(group.key, call)

    # decoding

    def decode(self, states: Tensor, prompts: Sequence[int]) -> Tensor:
        """Returns the images or videos [n, ...] of last states [n, ...] of n prompts, by the stock code."""
        return self.decode_all(states, prompts)[0]

    def decode_all(self, states: Tensor, prompts: Sequence[int]) -> list[Tensor]:
        """Returns the images or videos as `decode` does, and what else `results_of` finds, float32 [n, ...] each."""
        mode = self.learned[False].mode
        alike: dict[Any, list[int]] = {}
        for row, prompt in enumerate(prompts):
            alone = not self.decodes_many or mode == "single"
            alike.setdefault((prompt, row if alone else 0), []).append(row)
        made: list[list[Tensor]] = []
        for (prompt, _), rows in alike.items():
            call = self.take(Key(prompt, None, len(rows) if mode == "copies" else 1))
            at = torch.tensor(rows, device=states.device)
            made.append(self.results_of(call.finish([part[at] for part in self.split(states)])))
            if any(len(one) != len(rows) for one in made[-1]):
                counts = ", ".join(str(len(one)) for one in made[-1])
                raise NotDriven(f"it decodes {len(rows)} samples to {counts} outputs")
        if len(made) == 1:  # without a copy: decoded videos are large
            return [one.float() for one in made[0]]
        rows_made = torch.tensor([row for rows in alike.values() for row in rows])
        joined = (torch.cat(parts).float() for parts in zip(*made, strict=True))
        if bool((rows_made.diff() > 0).all()):
            return list(joined)
        return [one[rows_made.argsort().to(one.device)] for one in joined]


def _numel(shape: Sequence[int]) -> int:
    return torch.Size(shape).numel()
