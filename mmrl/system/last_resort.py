"""The forced end of a process that hangs where no exception can reach it."""

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
GRACE = 3.0  # seconds for a regular end after a second Ctrl-C
MARGIN = 60.0  # seconds for a late call to end by itself
GLANCE = 10.0  # seconds between two checks of the calls


class LastResort:
    """A context manager that ends this process where exceptions fail to. It is for processes of the command line only.

    On leaving the block it stops guarding.
    """

    def __init__(self, leave: Callable[[], str], *, is_reporting: bool = True) -> None:
        """Makes the guard of a run.

        Args:
            leave: cleans up after the run, and returns a text for the last message.
            is_reporting: this process prints why it ends; True for one of several processes of a run.
        """
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
        """Ends the process after a moment for the exception of Ctrl-C to do so; a second call ends it at once."""
        if self._timer is not None:
            self._stop()
        self._timer = threading.Timer(GRACE, self._stop)
        self._timer.daemon = True
        self._timer.start()

    def guard(self, guarded: Sequence[Patience]) -> None:
        """Ends the process where a call is late and cannot be interrupted, as it catches every exception.

        Where no other thread of Python can run, as during an endless regular expression, Python itself prints the stack
        of each thread.
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
