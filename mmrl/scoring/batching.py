"""Samples of several clients, judged together: one call of a reward at a time, groups and episodes whole.

A unit is what a reward judges at once: a sample, a group or an episode. Units of one kind (the same fields, media of
one size, the same iteration) share a call, up to the reward's batch size, whoever sent them.
"""

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Self

import torch

from mmrl.core.contracts import ConfigError, Reward, RewardBatch, RunError
from mmrl.core.data import Outputs
from mmrl.core.declarations import RewardDeclaration
from mmrl.core.keys import generator
from mmrl.core.reward_batches import check_needs, check_prompts
from mmrl.core.wire import ReadRequest, Sample, UnreadItem
from mmrl.scoring.calls import call_once
from mmrl.system.time_limits import CALL_SECONDS, Patience

log = logging.getLogger(__name__)
_GOODBYE = 30.0  # seconds that a call may still take when the queue ends
DEFAULT_SIZE = 64  # samples of one call of a reward that names no batch size


class QueueFull(Exception):
    """A queue that takes no more units now."""


@dataclass(frozen=True)
class Judged:
    """The result for one sample."""

    score: float | None  # None: not judged
    reason: str | None = None  # why


@dataclass(frozen=True, eq=False)
class Unit:
    """Samples that are judged at once, and where their results are waited for."""

    samples: tuple[Sample, ...]
    iteration: int
    kind: Hashable  # equal for units that may share a call
    result: "Future[list[Judged]]" = field(default_factory=Future)


def make_units(reward: Reward, request: ReadRequest) -> tuple[list[tuple[list[int], Unit]], dict[int, str]]:
    """Returns the units of a request, each with its rows, and the rows that are in no unit, each with the reason.

    A group or an episode is judged as a whole: where one of its items cannot be read, none of them is judged.
    """
    units: list[tuple[list[int], Unit]] = []
    unjudged: dict[int, str] = {}
    # Noise is that of the client's batch, with no one else's samples.
    own = object() if RewardDeclaration.of(reward).is_changing else None
    for rows in _rows_of_units(reward.granularity, request, unjudged):
        samples = tuple(one for row in rows if isinstance(one := request.samples[row], Sample))
        unread = [one for row in rows if isinstance(one := request.samples[row], UnreadItem)]
        shapes = {_shape_of(sample.outputs) for sample in samples}
        if unread:
            about = "" if len(rows) == 1 else f"a {reward.granularity} is judged as a whole, and in this one "
            unjudged |= dict.fromkeys(rows, about + unread[0].reason)
        elif len(shapes) > 1:
            unjudged |= dict.fromkeys(rows, "samples that are compared must have outputs of one kind and one size")
        else:
            kind = (shapes.pop(), request.iteration, own)
            units.append((rows, Unit(samples, request.iteration, kind)))
    return units, unjudged


def _rows_of_units(granularity: str, request: ReadRequest, unjudged: dict[int, str]) -> list[list[int]]:
    """Returns the rows of each unit; adds to `unjudged` those whose group or episode is unknown."""
    if granularity not in ("group", "episode"):
        return [[row] for row in range(len(request.samples))]
    names = [one.group if granularity == "group" else one.episode for one in request.samples]
    rows: OrderedDict[int, list[int]] = OrderedDict()
    for row, name in enumerate(names):
        if name is not None:
            rows.setdefault(name, []).append(row)
            continue
        sample = request.samples[row]
        lacking = f"the reward judges {granularity}s, and the item does not say its {granularity}"
        unjudged[row] = sample.reason if isinstance(sample, UnreadItem) else lacking
    if any(name is None and isinstance(one, UnreadItem) for name, one in zip(names, request.samples, strict=True)):
        unknown = f"an item of the request cannot be read and does not say its {granularity}, which may be this one"
        unjudged |= {row: unknown for members in rows.values() for row in members}
        return []
    return list(rows.values())


def _shape_of(outputs: Outputs) -> Hashable:
    """Returns which fields the outputs of a sample have, and the sizes of its media."""
    return tuple(item.name for item in fields(Outputs) if getattr(outputs, item.name) is not None), outputs.size


def joined(units: Sequence[Unit]) -> RewardBatch:
    """Returns the samples of units as one batch; groups and episodes of different units stay apart."""
    samples = [sample for unit in units for sample in unit.samples]
    groups: dict[Hashable, int] = {}
    episodes: dict[Hashable, int] = {}
    group, episode = [], []
    for number, unit in enumerate(units):
        for row, sample in enumerate(unit.samples):
            alone = (number, "row", row)
            group.append(groups.setdefault(alone if sample.group is None else (number, sample.group), len(groups)))
            episode.append(
                episodes.setdefault(alone if sample.episode is None else (number, sample.episode), len(episodes))
            )
    is_control = torch.tensor([sample.is_control for sample in samples])
    seeds = tuple(sample.seed for sample in samples)
    return RewardBatch(
        prompts=tuple(sample.prompt for sample in samples),
        outputs=Outputs.join([sample.outputs for sample in samples]),
        group=torch.tensor(group, dtype=torch.int64),
        episode=torch.tensor(episode, dtype=torch.int64),
        turn=torch.tensor([sample.turn for sample in samples], dtype=torch.int64),
        seeds=seeds,
        iteration=units[0].iteration,
        generator=generator(*seeds),
        is_control=is_control if bool(is_control.any()) else None,
    )


class BatchQueue:
    """The one thread that calls a reward, and the units that wait for it. Leaving it as a context ends the thread.

    Kinds of units take turns, so that no client waits behind all units of another. `on_call` is told the number of
    samples and the seconds of each call.
    """

    def __init__(
        self,
        name: str,
        reward: Reward,
        *,
        batch_size: int | None = None,
        max_waiting: int = 65536,
        call_seconds: float = CALL_SECONDS,
        on_call: Callable[[int, float], None] = lambda count, seconds: None,
    ) -> None:
        """Makes the queue. `batch_size`: samples of a call at most; None: the reward's. `max_waiting`: samples."""
        self.name, self.reward = name, reward
        self.batch_size = min(batch_size or DEFAULT_SIZE, reward.batch_size or batch_size or DEFAULT_SIZE)
        self._max_waiting, self._on_call = max_waiting, on_call
        self._patience = Patience(call_seconds)
        self._waiting: OrderedDict[Hashable, deque[Unit]] = OrderedDict()
        self._count = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"reward_{name}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_GOODBYE)

    def num_waiting(self) -> int:
        """Returns the number of samples that wait."""
        return self._count

    @property
    def trouble(self) -> str | None:
        """Why the reward answers no more: its call takes too long; None: it does."""
        late = self._patience.late()
        return None if late is None else str(late)

    def submit(self, units: Sequence[Unit]) -> None:
        """Queues units. Raises QueueFull where too many samples wait already, or the queue is closed."""
        count = sum(len(unit.samples) for unit in units)
        with self._changed:
            if self._is_closed:
                raise QueueFull("the server ends")
            if self._count and self._count + count > self._max_waiting:
                raise QueueFull(f"{self._count:,} samples wait for reward {self.name!r}; try again later")
            for unit in units:
                self._waiting.setdefault(unit.kind, deque()).append(unit)
            self._count += count
            self._changed.notify_all()

    def _work(self) -> None:
        while units := self._next():
            running = [unit for unit in units if unit.result.set_running_or_notify_cancel()]
            try:
                self._judge(running)
            except BaseException as error:  # raised again where the results are waited for
                for unit in running:
                    if not unit.result.done():
                        unit.result.set_exception(error)

    def _next(self) -> list[Unit]:
        """Returns the units of the next call, some of them maybe cancelled; waits for them. Empty: the queue ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                for unit in (unit for units in self._waiting.values() for unit in units):
                    unit.result.cancel()
                self._waiting.clear()
                self._count = 0
                return []
            kind, waiting = self._waiting.popitem(last=False)
            taken, room = [waiting.popleft()], self.batch_size
            room -= len(taken[0].samples)
            while waiting and len(waiting[0].samples) <= room:
                taken.append(waiting.popleft())
                room -= len(taken[-1].samples)
            if waiting:
                self._waiting[kind] = waiting
            self._count -= sum(len(unit.samples) for unit in taken)
            return taken

    def _judge(self, units: Sequence[Unit]) -> None:
        """Sets the results of units: of one call, or of one for each unit where that fails."""
        able = []
        for unit in units:
            if reason := self._refusal(unit):
                unit.result.set_result([Judged(None, reason)] * len(unit.samples))
            else:
                able.append(unit)
        if not able:
            return
        judged = self._called(able)
        if judged is None:
            for unit in able:
                unit.result.set_result(self._called([unit]) or [])
            return
        for unit in able:
            unit.result.set_result(judged[: len(unit.samples)])
            judged = judged[len(unit.samples) :]

    def _refusal(self, unit: Unit) -> str | None:
        """Returns why the reward can judge no such samples: they lack what it needs, or it refuses their targets."""
        try:
            batch = joined([unit])
            check_needs(self.name, self.reward, batch)
            check_prompts(self.name, self.reward, batch.prompts)
        except ConfigError as error:
            return str(error)
        return None

    def _called(self, units: Sequence[Unit]) -> list[Judged] | None:
        """Returns the results of one call; None where a call for several units fails."""
        batch = joined(units)
        began = time.perf_counter()
        try:
            with torch.no_grad():
                answer, failure = call_once(self.name, self.reward, batch, self._patience)
        except (ConfigError, RunError) as error:  # an unreadable picture, a result of a wrong shape
            answer, failure = None, f"{self.name}: {error}"
        self._on_call(len(batch), time.perf_counter() - began)
        if answer is None:
            if len(units) > 1:
                return None
            log.warning("%d samples could not be judged: %s", len(batch), failure)
            return [Judged(None, str(failure))] * len(batch)
        values = answer.values.tolist()
        return [Judged(None, str(failure)) if math.isnan(one) else Judged(one) for one in values]
