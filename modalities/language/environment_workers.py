"""Workers of environments: each copy runs on a thread of its own, with a time limit for every call."""

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from queue import Empty, SimpleQueue
from typing import Any

from mmrl.core.contracts import ConfigError, Environment
from mmrl.core.data import Observation
from mmrl.system.errors import describe, place, place_in


class BrokenWorld(Exception):
    """An environment raised, or took too long: its episode has failed, and the copy is not used again."""


class World:
    """One copy of an environment. `begin` starts a call and returns at once, `finish` waits for its result.

    `seconds` is the time limit of a call. A call that hangs cannot be stopped from outside, so its thread is left
    behind; being a daemon, it does not keep the process alive.
    """

    def __init__(self, environment: Environment, seconds: float) -> None:
        self.environment: Environment = replace(environment)  # type: ignore[type-var]  # plug-ins are dataclasses
        self.seconds = seconds
        self._calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._deadline = math.inf
        self._worked = 0.0  # seconds in calls that `take_seconds` has not returned yet
        self._thread = threading.Thread(target=self._work, daemon=True, name="environment")
        self._thread.start()

    def begin(self, call: Callable[[Environment], Any]) -> None:
        """Starts `call` on the environment; its time runs from now."""
        self._deadline = time.monotonic() + self.seconds
        self._calls.put(lambda: call(self.environment))

    def finish(self) -> Any:
        """Returns the result of the call begun last.

        Raises BrokenWorld where the call raised or took too long; a ConfigError is raised as it is.
        """
        try:
            answer, error = self._answers.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except Empty:
            frame = sys._current_frames().get(self._thread.ident or 0)
            where = "" if frame is None else place_in(traceback.extract_stack(frame), self.environment)
            name = type(self.environment).__name__
            raise BrokenWorld(f"{name} took more than step_seconds {self.seconds:g}{where}") from None
        if isinstance(error, ConfigError):
            raise error
        if error is not None:
            raise BrokenWorld(f"{describe(error)}{place(error, self.environment)}") from error
        return answer

    def take_seconds(self) -> float:
        """Returns the seconds in calls that ended since this was called last; a call that hangs has not ended."""
        worked, self._worked = self._worked, 0.0
        return worked

    def leave(self) -> None:
        """Closes the environment without waiting; a thread in the middle of a call ends after the call."""
        threading.Thread(target=self._close, daemon=True, name="closing an environment").start()
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            started = time.perf_counter()
            answer: tuple[Any, BaseException | None]
            try:
                answer = call(), None
            except BaseException as error:  # the only place that catches what an environment raises, sys.exit() too
                answer = None, error
            self._worked += time.perf_counter() - started
            self._answers.put(answer)

    def _close(self) -> None:
        self.environment.close()


def checked(answer: tuple[Any, Any]) -> tuple[Observation, str]:
    """Returns an observation and the key of a state, as an environment gave them. Raises BrokenWorld for others."""
    seen, state = answer
    if not isinstance(seen, Observation):
        raise BrokenWorld(f"gave no Observation but {type(seen).__name__}")
    kinds = {"text": str, "goal": str | None, "is_done": bool, "reward": Real}
    wrong = [name for name, kind in kinds.items() if not isinstance(getattr(seen, name), kind)]
    if wrong or not abs(seen.reward) < 1e30 or not isinstance(state, str):
        what = (
            f"a {wrong[0]} {getattr(seen, wrong[0])!r:.80}"
            if wrong
            else f"reward {seen.reward}, state key {state!r:.80}"
        )
        raise BrokenWorld(f"gave {what}; text and state key are texts, is_done a bool, reward a finite number")
    if not hasattr(seen.screenshot, "size") or not hasattr(seen.screenshot, "load"):
        raise BrokenWorld(f"gave a screenshot that is no Picture but {type(seen.screenshot).__name__}")
    try:
        hash(seen.screenshot)
    except TypeError:
        raise BrokenWorld("gave a screenshot that cannot be hashed; StoredPicture holds PNG bytes") from None
    return seen, state
