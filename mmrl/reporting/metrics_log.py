"""The metrics of a run in `metrics.jsonl`, and how a line is appended to a log so that it is whole or not there."""

import errno
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrl.reporting.metric_names import renamed
from mmrl.system.errors import ConfigError, RunError
from mmrl.system.files import flush, parse_json, read_plain, replace_file


def append_line(path: Path, line: bytes) -> None:
    """Appends one whole line to a file. Raises RunError where the disk is full; the file then ends as before."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(handle).st_size
        try:
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(handle, size)
            raise RunError(f"cannot write {path}: {error}; make room on the disk, then resume") from error
    finally:
        os.close(handle)


@dataclass(frozen=True)
class MetricsLog:
    """The file of a run's metrics, one strict JSON object per line: `{"iteration": n, name: number ...}`.

    Iterations count from 1; 0 is before training. Timings and memory have names under `VARYING`, since they alone
    differ between equal runs. JSON has no NaN and no infinity: such a value is written as null.
    """

    path: Path

    def write(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Appends one whole line. Raises RunError where the disk is full; the log then ends with the line before."""
        assert "iteration" not in metrics
        numbers: dict[str, float | None] = {"iteration": iteration}
        for name, value in metrics.items():
            numbers[name] = float(value) if math.isfinite(value) else None
        append_line(self.path, json.dumps(numbers, allow_nan=False).encode() + b"\n")

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
