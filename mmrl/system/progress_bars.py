"""The display of progress: a bar on a terminal, elsewhere a line from time to time."""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.text import Text

from mmrl.system.terminal import printable


class Screen(Console):
    """A console of rich on stdout or stderr, which makes all text printable, also other text above a bar."""

    def __init__(self, *, is_error: bool = False) -> None:
        stream = sys.stderr if is_error else sys.stdout
        super().__init__(file=getattr(stream, "rich_proxied_file", stream))

    def print(self, *objects: Any, **settings: Any) -> None:
        """Prints as rich does, but texts as they are, without colours, markup and emoji."""
        super().print(*map(_cleaned, objects), **settings)

    def on_broken_pipe(self) -> None:
        """Stops printing where the reader has closed the pipe, as `| head` does; rich itself would end the command."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _cleaned(shown: Any) -> Any:
    if isinstance(shown, Text):  # a line of others that rich caught above its bar
        return Text(printable(shown.plain))
    return Text(printable(shown)) if isinstance(shown, str) else shown


if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 2.0  # seconds after which progress is shown
EVERY = 30.0  # seconds between two lines


def _bar(console: "Console", *, is_of_run: bool) -> "Progress":
    """Returns a display of bars with descriptions; a terminal can show only one display at a time.

    `is_of_run`: the display stays when it ends, and other text on stdout is printed above it. Else it is for stderr,
    and disappears when it ends.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        refresh_per_second=2,
        transient=not is_of_run,
        redirect_stdout=is_of_run,
    )


class TrainingBar:
    """The bar of a run, with rate, time left and the latest values of a few metrics.

    Lines where there is no terminal.
    """

    def __init__(
        self,
        total: int,
        *,
        done: int = 0,
        every: int = 10,
        shown: Sequence[str] = ("reward/mean", "held_out/score"),
        console: "Console | None" = None,
    ) -> None:
        """Makes the bar of a run.

        Args:
            total: iterations of the run.
            done: iterations before this start.
            every: iterations between two lines, without a terminal.
            shown: metrics whose latest values are shown, each by the first part of its name.
            console: where to print; None: stdout.
        """
        self._total, self._done, self._every = total, done, every
        self._shown = shown
        self._latest: dict[str, tuple[float, int]] = {}  # value and iteration
        self._times = deque([(time.monotonic(), done)], maxlen=21)  # the rate is that of the last 20 iterations
        self._console = console or Screen()
        self._bar = _bar(self._console, is_of_run=True)
        self._task = self._bar.add_task(self.line(), total=total, completed=done)

    def update(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of an iteration; may be called more than once for the same iteration."""
        is_new = iteration > self._done
        if not is_new and len(self._times) == 1:  # the evaluation before training is no iteration
            self._times[0] = (time.monotonic(), self._done)
        if is_new:
            self._done = iteration
            self._times.append((time.monotonic(), iteration))
        self._latest |= {name: (metrics[name], iteration) for name in self._shown if name in metrics}
        if self._console.is_terminal:
            self._bar.start()  # the first time; afterwards it does nothing
            self._bar.update(self._task, completed=self._done, description=self.line())
        elif is_new and (iteration % self._every == 0 or iteration == self._total):
            self.say(self.line())

    def say(self, text: str) -> None:
        """Prints a line of its own."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def counter(self, what: str, total: int) -> "Counter":
        """Returns a counter of prompts for the activity `what`; its bar stands below this one."""
        return Counter(what, total, self._console, bar=self._bar)

    def line(self) -> str:
        """Returns the progress of the run in one line."""
        parts = [f"{self._done}/{self._total}"]
        for name in self._shown:
            if name in self._latest:
                value, of = self._latest[name]
                when = f" (at {of})" if of < self._done else ""
                parts.append(f"{name.partition('/')[0].replace('_', '-')} {value:.4g}{when}")
        (first_time, first), (last_time, last) = self._times[0], self._times[-1]
        if last > first and last_time > first_time:
            rate = (last - first) / (last_time - first_time)
            parts.append(f"{rate:.2f} iterations/s" if rate >= 1 else f"{1 / rate:.2f} s/iteration")
            parts.append(f"{timedelta(seconds=round((self._total - self._done) / rate))} left")
        return "  ".join(parts)

    def close(self) -> None:
        """Ends the display."""
        if self._console.is_terminal:
            self._bar.stop()


class Counter:
    """A context manager that counts and shows the progress of an activity, from a thread of its own.

    On a terminal it shows a bar after `patience` seconds, which disappears at the end; elsewhere it prints a line every
    `every` seconds.
    """

    def __init__(
        self,
        what: str,
        total: int,
        console: "Console | None",
        *,
        unit: str = "prompts",
        bar: "Progress | None" = None,
        patience: float | None = None,
        every: float | None = None,
    ) -> None:
        """Makes a counter.

        Args:
            what: the activity, in a word.
            total: how many there are to do.
            console: where to show it; None: nowhere.
            unit: the name of what is counted.
            bar: a display of the same console, to add the bar to; None: a new one.
            patience: seconds before the bar appears; None: `PATIENCE`.
            every: seconds between two lines; None: `EVERY`.
        """
        self._what, self._total, self._console, self._unit = what, total, console, unit
        self._bar = bar
        self._patience = PATIENCE if patience is None else patience
        self._every = EVERY if every is None else every
        self._done, self._within = 0, _nothing
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._started = 0.0

    @classmethod
    def on_stderr(cls, what: str, total: int, *, unit: str = "prompts") -> Self:
        """Returns a counter for a command whose result goes to stdout."""
        return cls(what, total, Screen(is_error=True), unit=unit)

    def begin(self, within: Callable[[], float]) -> None:
        """Begins a step; `within()`, which another thread calls, returns how many the step has done so far."""
        self._within = within

    def add(self, count: int) -> None:
        """Ends a step, with `count` done."""
        self._done, self._within = self._done + count, _nothing

    @property
    def done(self) -> float:
        """How many are done, with fractions."""
        return min(self._done + self._within(), float(self._total))

    def line(self) -> str:
        """Returns the progress in one line."""
        seconds = timedelta(seconds=int(time.monotonic() - self._started))
        return f"{self._what}: {int(self.done)} of {self._total} {self._unit} after {seconds}"

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._console is not None:
            show = self._render if self._console.is_terminal else self._print
            self._thread = threading.Thread(target=show, args=(self._console,), name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _render(self, console: "Console") -> None:
        if self._is_over.wait(self._patience):
            return
        bar = self._bar or _bar(console, is_of_run=False)
        task = bar.add_task(self.line(), total=self._total)
        bar.start()  # does nothing where it is shown already
        while not self._is_over.wait(min(0.5, self._every)):
            bar.update(task, completed=self.done, description=self.line())
        bar.remove_task(task)
        if self._bar is None:
            bar.stop()

    def _print(self, console: "Console") -> None:
        while not self._is_over.wait(self._every):
            console.print(self.line(), markup=False, highlight=False, soft_wrap=True)


def _nothing() -> float:
    return 0.0
