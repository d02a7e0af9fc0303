"""How far something is, as people see it: a bar where there is a terminal, else a line now and then."""

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
    """Draws on stdout, or on stderr; what is printed on it, also by others while a bar is shown, is cleaned first."""

    def __init__(self, *, is_error: bool = False) -> None:
        stream = sys.stderr if is_error else sys.stdout
        super().__init__(file=getattr(stream, "rich_proxied_file", stream))

    def print(self, *objects: Any, **settings: Any) -> None:
        """As rich's, but texts are shown as they are written: without colours, markup and emoji."""
        super().print(*map(_cleaned, objects), **settings)

    def on_broken_pipe(self) -> None:
        """Falls silent where nobody reads any more, as behind `| head`; rich itself would end the command."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _cleaned(shown: Any) -> Any:
    if isinstance(shown, Text):  # a line of others that rich caught above its bar
        return Text(printable(shown.plain))
    return Text(printable(shown)) if isinstance(shown, str) else shown


if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PATIENCE = 2.0  # seconds: of what takes less nothing is shown
EVERY = 30.0  # seconds between two lines


def _bar(console: "Console", *, is_of_run: bool) -> "Progress":
    """A display of bars, each with its description; another one on the same terminal would draw over it.

    `is_of_run`: it stays when it ends, and what is printed meanwhile stands above it. The other goes, and is on stderr,
    where nothing of stdout may come.
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
    """A bar with rate, time left and the latest of a few metrics; plain lines where stdout is no terminal."""

    def __init__(
        self,
        total: int,
        *,
        done: int = 0,
        every: int = 10,
        shown: Sequence[str] = ("reward/mean", "held_out/score"),
        console: "Console | None" = None,
    ) -> None:
        """Of `total` iterations, `done` were made before; without a terminal, one line per `every` iterations.

        `shown`: metrics whose latest value is shown, each called by the first part of its name.
        """

        self._total, self._done, self._every = total, done, every
        self._shown = shown
        self._latest: dict[str, tuple[float, int]] = {}  # and the iteration that it is of
        self._times = deque([(time.monotonic(), done)], maxlen=21)  # the rate is that of the last 20 iterations
        self._console = console or Screen()
        self._bar = _bar(self._console, is_of_run=True)
        self._task = self._bar.add_task(self.line(), total=total, completed=done)

    def update(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Takes in the numbers of an iteration; may be called more than once for the same one."""
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
        """A line of its own."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def counter(self, what: str, total: int) -> "Counter":
        """Counts prompts of which `what` is done; its bar stands below this one."""
        return Counter(what, total, self._console, bar=self._bar)

    def line(self) -> str:
        """Where the run stands, in one line."""
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
        if self._console.is_terminal:
            self._bar.stop()


class Counter:
    """Counts what is done of a total inside a `with` block; a thread of its own shows it, so that a long step is seen.

    On a terminal a bar after `patience` seconds, which goes again at the end; elsewhere a line every `every` seconds.
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
        """`console`: None shows nothing. `bar`: a display that stands on the console already, or may."""
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
        """Of a command whose result goes to stdout."""

        return cls(what, total, Screen(is_error=True), unit=unit)

    def begin(self, within: Callable[[], float]) -> None:
        """Says that a step has begun; `within()` is how many it has done so far, asked from another thread."""
        self._within = within

    def add(self, count: int) -> None:
        """Says that a step is over, with `count` done."""
        self._done, self._within = self._done + count, _nothing

    @property
    def done(self) -> float:
        """How many are done, in parts of one."""
        return min(self._done + self._within(), float(self._total))

    def line(self) -> str:
        """How far it is, in one line."""
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
