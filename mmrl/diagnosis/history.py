"""The numbers of a run so far, as the doctor's rules read them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from mmrl.core.config import RunConfig
from mmrl.reporting.record import Record


@dataclass
class History:
    """The metrics of a run so far, by name: pairs of iteration and value, finite ones alone, oldest first."""

    config: RunConfig
    values: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    iteration: int = 0  # the newest

    @classmethod
    def of_record(cls, record: Record, config: RunConfig) -> "History":
        """Returns the history of a run directory."""
        finite = {name: record.metrics[name].finite() for name in record.metrics}
        values = {
            name: [(int(at), value) for at, value in zip(series.iterations, series.values, strict=True)]
            for name, series in finite.items()
        }
        return cls(config, values, record.span[1])

    def add(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Appends the metrics of an iteration or an evaluation."""
        self.iteration = max(self.iteration, iteration)
        for name, value in metrics.items():
            if math.isfinite(value):
                self.values.setdefault(name, []).append((iteration, float(value)))

    def add_line(self, line: Mapping[str, Any], but: tuple[str, ...] = ()) -> None:
        """Appends the numbers of a line of metrics.jsonl, without the names that begin with one of `but`."""
        numbers = {
            name: value
            for name, value in line.items()
            if name != "iteration" and isinstance(value, int | float) and not name.startswith(but)
        }
        self.add(int(line["iteration"]), numbers)

    def by_iteration(self) -> dict[int, dict[str, float]]:
        """Returns the metrics of each iteration, its evaluation among them, in order."""
        lines: dict[int, dict[str, float]] = {}
        for name, pairs in self.values.items():
            for at, value in pairs:
                lines.setdefault(at, {})[name] = value
        return dict(sorted(lines.items()))

    def mean(self, name: str, count: int = 3, *, fewest: int | None = None) -> float | None:
        """Returns the mean of the last `count` values; None where there are fewer than `fewest` (None: `count`)."""
        last = self.values.get(name, [])[-count:]
        return fmean(value for _, value in last) if len(last) >= (count if fewest is None else fewest) else None

    def first(self, name: str, count: int = 3) -> float | None:
        """Returns the mean of the first `count` values; None where there are fewer."""
        values = self.values.get(name, [])[:count]
        return fmean(value for _, value in values) if len(values) == count else None

    def around(self, name: str, iteration: int, count: int = 3) -> float | None:
        """Returns the mean of the last `count` values up to an iteration; None where there are none."""
        values = [value for at, value in self.values.get(name, []) if at <= iteration][-count:]
        return fmean(values) if values else None
