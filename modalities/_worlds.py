"""Environments at work: each copy on a thread of its own, with a time limit for every call."""

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from mmrl.contracts import ConfigError, Environment


class BrokenWorld(Exception):
    """An environment raised, or took too long: its episode has failed, and the copy is not used again."""


class World:
    """One copy of an environment. `begin` starts a call and returns at once, `finish` waits for its answer.

    `seconds` is the time limit of a call. A call that hangs cannot be stopped from outside, so its thread is left
    behind; being a daemon, it does not keep the process alive.
    """

    def __init__(self, environment: Environment, seconds: float) -> None:
        self.environment: Environment = replace(environment)  # type: ignore[type-var]  # plug-ins are dataclasses
        self.seconds = seconds
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="environment").start()

    def begin(self, call: Callable[[Environment], Any]) -> None:
        """Starts `call` on the environment."""
        self._calls.put(lambda: call(self.environment))

    def finish(self) -> Any:
        """What the call begun last returned. Raises BrokenWorld where it raised or took too long, ConfigError as is."""
        try:
            answer, error = self._answers.get(timeout=self.seconds)
        except Empty:
            raise BrokenWorld(f"took more than step_seconds {self.seconds:g}") from None
        if isinstance(error, ConfigError):
            raise error
        if error is not None:
            raise BrokenWorld(f"{type(error).__name__}: {error}") from error
        return answer

    def leave(self) -> None:
        """Closes the environment without waiting for it; a thread in the middle of a call ends behind it."""
        threading.Thread(target=self._close, daemon=True, name="closing an environment").start()
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._answers.put((call(), None))
            except Exception as error:  # the only place that catches what an environment raises, whatever it is
                self._answers.put((None, error))

    def _close(self) -> None:
        self.environment.close()
