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
GLANCE = 1.0  # seconds between two checks whether a call takes too long
SECOND_TRY = 1.0  # seconds between two alarms for a call that catches the exception of its time limit


class _TimeUp(Interruption):
    """The time limit of a call in the main thread, raised inside of the call."""


@dataclass(eq=False)
class Call:
    """One call that has not returned yet."""

    what: str  # who is called, and for what, in words
    owner: object  # the plug-in
    deadline: float  # on the monotonic clock
    thread: int = field(default_factory=threading.get_ident)
    is_open: bool = True  # may be interrupted

    @property
    def place(self) -> str:
        """The line of code that it executes now, in words."""
        frame = sys._current_frames().get(self.thread)
        return "" if frame is None else place_in(traceback.extract_stack(frame), self.owner)


class Patience:
    """The time limit of each call of a reward, by the clock, and the calls that have not returned yet.

    A call in the main thread is interrupted by an alarm. A thread cannot be stopped from outside: for a call in another
    thread, HangError is raised where its result is waited for (`result`), and the thread is left behind.
    """

    def __init__(self, seconds: float = CALL_SECONDS) -> None:
        self.seconds = seconds
        self._calls: dict[Call, None] = {}

    @contextmanager
    def call(self, what: str, owner: object) -> Iterator[None]:
        """Raises HangError where the block takes too long in the main thread. `what`: who is called, and for what."""
        call = Call(what, owner, time.monotonic() + self.seconds)
        self._calls[call] = None
        try:
            with self._alarm(call) if threading.current_thread() is threading.main_thread() else nullcontext():
                yield
        finally:
            del self._calls[call]

    @contextmanager
    def _alarm(self, call: Call) -> Iterator[None]:
        """Interrupts the main thread when the call is late, unless an earlier alarm of other code is set."""

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
        """Returns the error of a call that is at least `by` seconds late; None: there is no such call."""
        call = next((call for call in list(self._calls) if time.monotonic() >= call.deadline + by), None)
        return None if call is None else self._error(call, call.place)

    def result(self, job: "Future[T]") -> T:
        """Returns the result of a job on another thread. Raises its exception, and HangError for a late call."""
        if error := self._wait([job]):
            raise error
        return job.result()

    def _wait(self, jobs: "Sequence[Future[Any]]") -> HangError | None:
        """Waits until all jobs are done, or a call is late, and returns the error of that call."""
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
    """A context manager of up to `count` threads, which do jobs in the order of submission.

    On leaving the block, running jobs are finished, waiting ones are dropped, and the threads end. A job that hangs is
    left behind: its thread does not keep the process alive, and after Ctrl-C or a late call nothing is waited for.
    """

    def __init__(self, count: int, name: str, patience: Patience) -> None:
        self._count, self._name, self._patience = count, name, patience
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._futures: list[Future[Any]] = []
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[..., T], *arguments: Any) -> "Future[T]":
        """Queues a call; returns at once."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # raised again by `Future.result`
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
