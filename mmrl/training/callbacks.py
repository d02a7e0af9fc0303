"""Callbacks: code of the user's own that a training run calls at its events."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

from mmrl.core.config import RunConfig
from mmrl.system.errors import ConfigError, RunError, describe, place
from mmrl.system.spelling import near, nearest

Event = Literal["on_train_begin", "on_iteration_end", "on_evaluate", "on_save", "on_train_end"]
EVENTS: tuple[Event, ...] = get_args(Event)


@dataclass(frozen=True)
class TrainState:
    """The facts of a run at an event."""

    folder: Path  # the run directory, absolute
    config: RunConfig  # the settings of the run
    is_main: bool  # whether this process is the one of the run that writes files
    iteration: int  # iterations that are done; 0 before the first
    metrics: Mapping[str, float]  # of the newest iteration, as metrics.jsonl has them; empty before one is done
    held_out: Mapping[str, float]  # of the newest held-out evaluation; empty before one is made
    held_out_before: float | None  # held-out score before training
    held_out_score: float | None  # held-out score of the newest evaluation, also of one before a resume
    best_held_out_score: float | None  # highest held-out score after the first iteration
    best_iteration: int | None  # the iteration with that score
    checkpoint: Path | None  # the newest checkpoint, whole on the disk
    train_seconds: float  # seconds of training, with scoring and saving, without evaluations and callbacks
    is_complete: bool  # whether training is complete; False before on_train_end, and there where the run was stopped


@dataclass(frozen=True)
class TrainControl:
    """The means by which a callback acts on the run."""

    _stop: Callable[[], None]

    def request_stop(self) -> None:
        """Ends the run as Ctrl-C does: after the iteration at hand, with a checkpoint, to be resumed.

        A request on one process stops all. The iteration's evaluation is left out where the request comes before it,
        and is made on resume. In `on_train_end` a request does nothing.
        """
        self._stop()


class Callback:
    """The base of callbacks: each event is a method that does nothing; override those that you need.

    Every process of a run calls the callbacks, in the order in which they were given and at the same place of the run.
    Write files and print only where `state.is_main`; metrics are those of all processes, their `time/...` the process's
    own. No event changes what is trained. A run that is resumed has the events that are left of the whole run, between
    an `on_train_begin` and an `on_train_end` of its own; iterations after the newest checkpoint are trained again, and
    so have theirs again.

    An exception ends the run on all processes with RunError (exit code 1), which names the file and the line. What was
    trained is saved before, so a resumed run goes on behind the event that failed.

    Raises ConfigError when a subclass is defined with a method `on_...` that is no event.
    """

    def on_train_begin(self, state: TrainState, control: TrainControl) -> None:
        """Called once in each start, before anything is evaluated or trained; a resumed run has its `iteration`."""

    def on_iteration_end(self, state: TrainState, control: TrainControl) -> None:
        """Called after each iteration: `state.metrics` are its numbers. An evaluation and a save come later."""

    def on_evaluate(self, state: TrainState, control: TrainControl) -> None:
        """Called after each held-out evaluation: `state.held_out` are its numbers. The first is before training."""

    def on_save(self, state: TrainState, control: TrainControl) -> None:
        """Called when `state.checkpoint` is whole on the disk; after the evaluation where an iteration has both."""

    def on_train_end(self, state: TrainState, control: TrainControl) -> None:
        """Called last, when summary.json and report.html are written; not where an error ended the run."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in vars(cls):
            is_near = f"on_{name}" in EVENTS or nearest(name, [*EVENTS, *dir(Callback)], likeness=0.8) in EVENTS
            if name not in EVENTS and (name.startswith("on_") or is_near):
                hint = near(name, EVENTS)
                raise ConfigError(f"{cls.__name__}.{name} is no event{hint}; events are {', '.join(EVENTS)}")


class CallbackError(RunError):
    """A callback raised an exception."""


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a run, in order."""

    members: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        for number, callback in enumerate(self.members):
            if not isinstance(callback, Callback):
                hint = "; give an instance of it" if isinstance(callback, type) else ""
                raise ConfigError(
                    f"callbacks.{number} must be an instance of mmrl.Callback, got {callback!r:.80}{hint}"
                )
            for event in EVENTS:
                _check_call(callback, event)

    def __bool__(self) -> bool:
        return bool(self.members)

    def call(self, event: Event, state: TrainState, control: TrainControl) -> None:
        """Calls the event of each callback. Raises CallbackError, with file and line, for the first that fails."""
        for callback in self.members:
            try:
                getattr(callback, event)(state, control)
            except (Exception, SystemExit) as error:
                what = f"callback {type(callback).__name__} failed in {event} at iteration {state.iteration}"
                raise CallbackError(f"{what}: {describe(error)}{place(error, callback)}") from error


def _check_call(callback: Callback, event: Event) -> None:
    """Raises ConfigError where the method of an event does not take state and control."""
    method = getattr(callback, event)
    try:
        inspect.signature(method).bind(None, None)
    except TypeError as error:
        wanted = f"def {event}(self, state, control)"
        raise ConfigError(
            f"{type(callback).__name__}.{event} must be called with state and control: {wanted}"
        ) from error
    if inspect.iscoroutinefunction(method):
        raise ConfigError(
            f"{type(callback).__name__}.{event} is async, and nothing would wait for it; write a plain def"
        )


def frozen(metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Returns a copy that cannot be changed."""
    return MappingProxyType(dict(metrics))
