"""The metrics of a run while it trains: `metrics.jsonl` always, trackers by name, and a progress bar."""

import errno
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mmrl.reporting.metric_names import renamed
from mmrl.reporting.trackers import Tracker
from mmrl.system.errors import ConfigError, RunError
from mmrl.system.files import flush, parse_json, read_plain, replace_file
from mmrl.system.progress_bars import Counter, TrainingBar


@dataclass(frozen=True)
class MetricsLog:
    """The file of a run's metrics, one strict JSON object per line: `{"iteration": n, name: number ...}`.

    Iterations count from 1; 0 is before training. Timings have names under `time/`, since they alone differ between
    equal runs. JSON has no NaN and no infinity: such a value is written as null.
    """

    path: Path

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Appends one whole line. Raises RunError where the disk is full; the log then ends with the line before."""
        assert "iteration" not in metrics
        numbers: dict[str, float | None] = {"iteration": iteration}
        for name, value in metrics.items():
            numbers[name] = float(value) if math.isfinite(value) else None
        line = json.dumps(numbers, allow_nan=False).encode() + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(handle).st_size
            try:
                if os.write(handle, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                os.ftruncate(handle, size)
                raise RunError(f"cannot write {self.path}: {error}; make room on the disk, then resume") from error
        finally:
            os.close(handle)

    def read(self) -> list[dict[str, Any]]:
        """Returns all lines, oldest first, with the present names of metrics; [] where there is no file.

        A last line that a kill cut short is left out. Raises ConfigError, with the line's number, for any other damage.
        """
        return [renamed(numbers) for _, numbers in self._lines()]

    def cut_back(self, iteration: int, *, is_evaluated: bool = True) -> None:
        """Keeps the lines up to `iteration` (-1: none) unchanged and drops the rest, in one step.

        `is_evaluated` False: the evaluation of `iteration` itself is made again, and its line is dropped too.
        """
        if not self.path.exists():
            return
        kept = [line for line, _ in self._lines_up_to(iteration, is_evaluated)]
        replace_file(self.path, b"".join(line + b"\n" for line in kept))

    def count_up_to(self, iteration: int, *, is_evaluated: bool = True) -> tuple[int, int]:
        """Returns how many lines `cut_back` would keep, and how many iterations of training have one among them."""
        kept = self._lines_up_to(iteration, is_evaluated)
        return len(kept), len({numbers["iteration"] for _, numbers in kept} - {0})

    def sync(self) -> None:
        """Flushes the file to the disk, so that a checkpoint never outlives earlier lines in a power cut."""
        if self.path.exists():
            flush(self.path)

    def _lines_up_to(self, iteration: int, is_evaluated: bool) -> list[tuple[bytes, dict[str, Any]]]:
        return [
            (line, numbers)
            for line, numbers in self._lines()
            if numbers["iteration"] < iteration
            or (numbers["iteration"] == iteration and (is_evaluated or "held_out/score" not in numbers))
        ]

    def _lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        try:
            content = read_plain(self.path) if self.path.exists() else b""
        except OSError as error:
            raise ConfigError(f"cannot read {self.path}: {error.strerror or error}") from error
        *whole, last = content.split(b"\n")
        if last.rstrip().endswith(b"}"):  # else a kill cut it short; an object is whole where its end is there
            whole.append(last)
        lines = []
        for number, line in enumerate(whole, start=1):
            numbers = parse_json(line, f"{self.path}, line {number}")
            if not isinstance(numbers, dict) or not isinstance(numbers.get("iteration"), int):
                raise ConfigError(f"{self.path}, line {number} has no iteration")
            lines.append((line, numbers))
        return lines


@dataclass(frozen=True)
class Tracking:
    """The log, the trackers and the progress bar of a run. Without parts, as on all processes but the main
    one, it does nothing.
    """

    metrics: MetricsLog | None = None
    trackers: Sequence[Tracker] = ()
    progress: TrainingBar | None = None
    _opened: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def open(self, folder: Path, config: Mapping[str, Any], kept: int = -1, *, is_evaluated: bool = True) -> Self:
        """Starts all parts for the run directory `folder`; numbers after iteration `kept` (-1: all) are dropped.

        `is_evaluated`: as for `MetricsLog.cut_back`.
        Raises ConfigError where a tracker's package is missing or refuses the run; then nothing stays open.
        """
        with ExitStack() as opened:
            if self.metrics is not None:
                self.metrics.cut_back(kept, is_evaluated=is_evaluated)
            for tracker in self.trackers:
                tracker.open(folder, config, kept)
                opened.callback(tracker.close)
            if self.progress is not None:
                opened.callback(self.progress.close)
            self._opened.push(opened.pop_all())
        return self

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Passes on the metrics of an iteration; trackers get the finite ones."""
        if self.metrics is not None:
            self.metrics.write(iteration, metrics)
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for tracker in self.trackers:
            tracker.log(iteration, finite)
        if self.progress is not None:
            self.progress.update(iteration, metrics)

    def images(self, iteration: int, name: str, paths: Sequence[Path]) -> None:
        """Shows image files in the trackers."""
        for tracker in self.trackers:
            tracker.images(iteration, name, paths)

    def counter(self, what: str, total: int) -> Counter:
        """Returns a counter of prompts of which `what` is done; it is shown with the bar, where there is one."""
        return Counter(what, total, None) if self.progress is None else self.progress.counter(what, total)

    def sync(self) -> None:
        """Flushes the log to the disk; to be called before a checkpoint is saved."""
        if self.metrics is not None:
            self.metrics.sync()

    def close(self) -> None:
        """Closes every part, even where one fails; a second call does nothing."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
