"""A run directory as the report reads it: metrics by name, the summary, the settings."""

import math
import re
from array import array
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mmrl.reporting.metric_names import renamed
from mmrl.system.errors import ConfigError, in_one_line
from mmrl.system.files import parse_json, read_plain
from mmrl.system.yaml_text import parse_yaml

OTHER_SAMPLER = re.compile(r"held_out_([^/]+)/score")


def held_out(sampler: str) -> str:
    """Returns the group of metrics, and the part of the summary, of a further sampler ('': the main one)."""
    return f"held_out_{sampler}" if sampler else "held_out"


@dataclass(frozen=True)
class Series:
    """One metric over the run; a value that was not finite stays in as NaN."""

    iterations: "array[float]"  # in the order of the log
    values: "array[float]"  # as many

    def finite(self) -> "Series":
        """Returns the series without values that are not finite."""
        kept = [index for index, value in enumerate(self.values) if math.isfinite(value)]
        if len(kept) == len(self.values):
            return self
        return Series(
            array("d", (self.iterations[index] for index in kept)), array("d", (self.values[index] for index in kept))
        )

    @property
    def num_not_finite(self) -> int:
        return sum(not math.isfinite(value) for value in self.values)


FAILURE = "failure.json"  # in a run directory whose last start failed


@dataclass(frozen=True)
class RunFailure:
    """The error that ended a run, as the run left it."""

    kind: str  # the class of the exception
    reason: str  # its message


@dataclass(frozen=True)
class Record:
    """The content of a run directory without its samples."""

    name: str
    metrics: dict[str, Series]  # never empty
    summary: dict[str, Any]  # empty when the run was stopped
    config: str | None  # the text of config.yaml
    failure: RunFailure | None = None  # None where no error ended it, or none that Python could catch

    @cached_property
    def span(self) -> tuple[int, int]:
        """Returns the first and the last iteration at which any metric was logged."""
        ends = [(min(series.iterations), max(series.iterations)) for series in self.metrics.values()]
        return int(min(first for first, _ in ends)), int(max(last for _, last in ends))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Returns the settings of config.yaml; empty where it is missing or no YAML mapping."""
        return parsed_settings(self.config) or {}

    @cached_property
    def other_samplers(self) -> list[str]:
        """Returns the further samplers of held-out evaluation: `greedy` for the metric `held_out_greedy/score`."""
        matches = (OTHER_SAMPLER.fullmatch(name) for name in self.metrics)
        return [match[1] for match in matches if match]

    def finite(self, name: str) -> Series | None:
        """Returns a metric's finite values; None where it has none."""
        series = self.metrics[name].finite() if name in self.metrics else None
        return series if series is not None and series.values else None

    def total(self, name: str) -> float | None:
        """Returns the sum of a metric over the run; None where it has no finite value."""
        series = self.finite(name)
        return None if series is None else math.fsum(series.values)


def parsed_settings(config: str | None) -> dict[str, Any] | None:
    """Returns the settings in the text of a config.yaml; None where it is missing or no YAML mapping."""
    try:
        settings = parse_yaml(config or "", "config.yaml")
    except ConfigError:
        return None
    return settings if isinstance(settings, dict) else None


def read_record(run: Path) -> Record:
    """Returns the run at `run`.

    Raises ConfigError when there is no such directory, no metrics in it, or a file that is not what a run writes.
    """
    if not run.is_dir():
        raise ConfigError(f"no run directory at {run}")
    metrics = _read_metrics(run / "metrics.jsonl")
    if not metrics:
        raise ConfigError(
            f"{run} holds no metrics yet: metrics.jsonl is missing or empty, so there is nothing to report"
        )
    return read_record_of(run, metrics)


def read_record_of(run: Path, metrics: dict[str, Series]) -> Record:
    """Returns the run at `run` with metrics that were read already. Raises ConfigError for a damaged file."""
    config = run / "config.yaml"
    return Record(
        name=run.resolve().name,
        metrics=metrics,
        summary=_read_summary(run / "summary.json"),
        config=_read_text(config) if config.exists() else None,
        failure=_read_failure(run / FAILURE),
    )


def read_object(path: Path, content: bytes, place: str = "") -> dict[str, Any]:
    """Returns the JSON object in `content`. Raises ConfigError that names the file."""
    value = parse_json(content, f"{path}{place}")
    if not isinstance(value, dict):
        raise ConfigError(f"{path}{place} is damaged: it must hold a JSON object, got {type(value).__name__}")
    return value


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file of a run. Raises ConfigError where it cannot be read."""
    try:
        return read_plain(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def _read_text(path: Path) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is damaged: it is no text in UTF-8 ({error})") from error


def _read_summary(path: Path) -> dict[str, Any]:
    return read_object(path, read_bytes(path)) if path.exists() else {}


def _read_failure(path: Path) -> RunFailure | None:
    if not path.exists():
        return None
    kind = reason = None
    with suppress(ConfigError):  # a note, which must not take the numbers of the run with it
        kind, reason = (read_object(path, read_bytes(path)).get(name) for name in ("kind", "reason"))
    if not isinstance(kind, str) or not isinstance(reason, str):
        return RunFailure("", f"what {FAILURE} says cannot be read")
    return RunFailure(kind, in_one_line(reason))


def _read_metrics(path: Path) -> dict[str, Series]:
    metrics: dict[str, Series] = {}
    lines = read_bytes(path).splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if not line.endswith(b"\n") and not line.rstrip().endswith(b"}"):
            break  # the process was killed while it wrote its last line
        add_line(metrics, path, line, f", line {number}")
    return metrics


def add_line(metrics: dict[str, Series], path: Path, content: bytes, place: str = "") -> None:
    """Adds a line of metrics.jsonl to the series. Raises ConfigError, with its place, where it is damaged."""
    line = read_object(path, content, place)
    iteration = line.pop("iteration", None)
    if not isinstance(iteration, int) or isinstance(iteration, bool) or not 0 <= iteration < 2**53:
        raise ConfigError(f"{path}{place} is damaged: no 'iteration' of 0 or more, got {iteration!r:.80}")
    for name, value in renamed(line).items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            continue
        series = metrics.setdefault(name, Series(array("d"), array("d")))
        series.iterations.append(iteration)
        series.values.append(math.nan if value is None else value)
