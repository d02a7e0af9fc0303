"""The end of a process in which something hangs where no exception reaches it."""

import faulthandler
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

from mmrl.system.terminal import printable
from mmrl.system.time_limits import Patience

INTERRUPTED = 130  # the exit code of Ctrl-C, as shells have it
GRACE = 3.0  # seconds that the orderly way out may take behind a second Ctrl-C
MARGIN = 60.0  # seconds that a call which is late has to end itself
GLANCE = 10.0  # seconds between two looks at the calls


class LastResort:
    """Ends this process where an exception does not: for one that is a run's alone, and nobody's session of Python.

    A context manager: on leaving, nothing is watched any more. `leave` cleans up what the run leaves behind, and
    returns what there is to say of it; `is_reporting`: whether this process says why it ends, of all that run here.
    """

    def __init__(self, leave: Callable[[], str], *, is_reporting: bool = True) -> None:
        self._leave, self._is_reporting = leave, is_reporting
        self._timer: threading.Timer | None = None
        self._is_over = threading.Event()
        self._guarded: list[Patience] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._guarded:
            faulthandler.cancel_dump_traceback_later()

    def stop_soon(self) -> None:
        """Gives the exception of Ctrl-C a moment to end the process; called again it ends it at once."""
        if self._timer is not None:
            self._stop()
        self._timer = threading.Timer(GRACE, self._stop)
        self._timer.daemon = True
        self._timer.start()

    def guard(self, guarded: Sequence[Patience]) -> None:
        """Ends the process where a call is late and cannot be interrupted, such as one that catches everything.

        Where not even threads of Python run, as while one matches an endless regular expression, what each thread was
        in the middle of is printed by Python itself.
        """
        self._guarded += guarded
        threading.Thread(target=self._look, daemon=True, name="last resort").start()

    def _look(self) -> None:
        longest = max(patience.seconds for patience in self._guarded)
        while True:
            faulthandler.dump_traceback_later(longest + MARGIN, exit=True, file=2)
            if self._is_over.wait(GLANCE):
                break
            for error in filter(None, (patience.late(MARGIN) for patience in self._guarded)):
                self._end(1, str(error))
        faulthandler.cancel_dump_traceback_later()

    def _stop(self) -> NoReturn:
        self._end(INTERRUPTED, "stopped")

    def _end(self, code: int, words: str) -> NoReturn:
        left = ""
        with suppress(Exception):
            left = self._leave()
        if self._is_reporting:
            with suppress(OSError):  # not print, which may hang too
                os.write(2, f"mmrl: {printable(words)}{left if code == INTERRUPTED else ''}\n".encode())
        os._exit(code)
