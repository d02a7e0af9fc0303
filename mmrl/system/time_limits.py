"""The time limit of each call of a reward, and threads for such calls that do not keep the process alive."""

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from mmrl.system.errors import HangError, Interruption, place, place_in

T = TypeVar("T")
CALL_SECONDS = 7200.0  # a judge behind a slow server may take seconds for each of hundreds of samples
GLANCE = 1.0  # seconds after which a waiting thread looks again whether a call takes too long
SECOND_TRY = 1.0  # seconds after which a call that caught the end of its time is told again


class _TimeUp(Interruption):
    """Raised inside of a call in the main thread."""


@dataclass(eq=False)
class Call:
    """One call that has not returned yet."""

    what: str  # is called, and about what, in words
    owner: object  # the plug-in
    deadline: float  # on the monotonic clock
    thread: int = field(default_factory=threading.get_ident)
    is_open: bool = True  # may be interrupted

    @property
    def place(self) -> str:
        """Where it is now, in words."""
        frame = sys._current_frames().get(self.thread)
        return "" if frame is None else place_in(traceback.extract_stack(frame), self.owner)


class Patience:
    """How long each call of a reward may take, by the clock, and the calls that are under way.

    Nothing can stop a thread of Python from outside. A call in the main thread is interrupted by an alarm; for one in
    another thread HangError is raised where its answer is waited for (`result`), and the thread is left behind.
    """

    def __init__(self, seconds: float = CALL_SECONDS) -> None:
        self.seconds = seconds
        self._calls: dict[Call, None] = {}

    @contextmanager
    def call(self, what: str, owner: object) -> Iterator[None]:
        """Raises HangError where the block takes too long, in the main thread. `what`: who is asked, about what."""
        call = Call(what, owner, time.monotonic() + self.seconds)
        self._calls[call] = None
        try:
            with self._alarm(call) if threading.current_thread() is threading.main_thread() else nullcontext():
                yield
        finally:
            del self._calls[call]

    @contextmanager
    def _alarm(self, call: Call) -> Iterator[None]:
        """Interrupts the main thread when the call is late; an earlier alarm of somebody else stays instead."""

        def end(number: int, frame: FrameType | None) -> None:
            if call.is_open:
                raise _TimeUp

        other, _ = signal.getitimer(signal.ITIMER_REAL)
        if 0 < other <= self.seconds or signal.getsignal(signal.SIGALRM) is None:
            yield
            return
        began, before = time.monotonic(), signal.signal(signal.SIGALRM, end)
        _, interval = signal.setitimer(signal.ITIMER_REAL, self.seconds, SECOND_TRY)
        try:
            try:
                yield
            finally:
                call.is_open = False
        except _TimeUp as error:
            raise self._error(call, place(error, call.owner)) from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if other:
                signal.setitimer(signal.ITIMER_REAL, max(other - (time.monotonic() - began), 1e-3), interval)

    def late(self, by: float = 0.0) -> HangError | None:
        """What there is to say of a call that takes `by` seconds longer than it may."""
        call = next((call for call in list(self._calls) if time.monotonic() >= call.deadline + by), None)
        return None if call is None else self._error(call, call.place)

    def result(self, job: "Future[T]") -> T:
        """What a job on another thread returned. Raises what it raised, and HangError where a call takes too long."""
        if error := self._wait([job]):
            raise error
        return job.result()

    def _wait(self, jobs: "Sequence[Future[Any]]") -> HangError | None:
        """Waits until all are done, or a call is late."""
        while not all(job.done() for job in jobs):
            now = time.monotonic()
            left = [call.deadline - now for call in list(self._calls)]
            wait(jobs, timeout=max(1e-3, min([GLANCE, *left])))
            if (error := self.late()) and not all(job.done() for job in jobs):
                return error
        return None

    def _error(self, call: Call, where: str) -> HangError:
        return HangError(
            f"{call.what} has not answered within the {self.seconds:g} seconds of scoring.call_seconds{where}"
        )


class Workers:
    """Up to `count` threads that do jobs in the order of their submission.

    A context manager: on leaving, the jobs at hand are finished, the waiting ones are dropped, the threads end. A job
    that hangs is left behind: its thread does not keep the process alive, and neither Ctrl-C nor a late call waits.
    """

    def __init__(self, count: int, name: str, patience: Patience) -> None:
        self._count, self._name, self._patience = count, name, patience
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._futures: list[Future[Any]] = []
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[..., T], *given: Any) -> "Future[T]":
        """Queues a call; returns at once."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*given))
            except BaseException as error:  # it is raised where the result is asked for
                future.set_exception(error)

        self._futures = [one for one in self._futures if not one.done()] + [future]
        self._jobs.put(work)
        if len(self._threads) < self._count:
            number = len(self._threads)
            self._threads.append(threading.Thread(target=self._work, daemon=True, name=f"{self._name}_{number}"))
            self._threads[-1].start()
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for future in self._futures:
            future.cancel()
        for _ in self._threads:
            self._jobs.put(None)
        is_interrupted = kind is not None and not issubclass(kind, Exception)
        if not is_interrupted and self._patience._wait(self._futures) is None:
            for thread in self._threads:
                thread.join()
