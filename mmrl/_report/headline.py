"""What a run achieved, in the numbers that its first line says."""

import math
from dataclasses import dataclass
from typing import Any

from mmrl._report.record import Record


@dataclass(frozen=True)
class Headline:
    """From where to where, and what it cost; None where the run did not log it."""

    measure: str  # what `before` and `after` are of
    before: float | None
    after: float | None
    best: float | None
    seconds: float | None  # of training
    iterations: int
    network_calls: float | None
    is_finished: bool


def headline(record: Record) -> Headline:
    """From summary.json; what it lacks (always, when the run was stopped) from the metrics."""
    summary = record.summary
    measure, before, after, best = _measured(record)
    seconds = _number(summary.get("train_seconds"))
    calls = _number(summary.get("network_calls"))
    return Headline(
        measure=measure,
        before=before,
        after=after,
        best=best,
        seconds=record.total("time/iteration") if seconds is None else seconds,
        iterations=int(_number(summary.get("iterations")) or record.span[1]),
        network_calls=_calls(record) if calls is None else calls,
        is_finished=bool(summary),
    )


def _measured(record: Record) -> tuple[str, float | None, float | None, float | None]:
    held_out = record.summary.get("held_out")
    if isinstance(held_out, dict):
        before, after = _number(held_out.get("before")), _number(held_out.get("after"))
        if before is not None and after is not None:
            name = held_out.get("name")
            return (
                f"held-out score ({name})" if name else "held-out score",
                before,
                after,
                _number(held_out.get("best")),
            )
    for name, measure in (("held_out/score", "held-out score"), ("reward/mean", "training reward")):
        series = record.finite(name)
        if series is not None and len(series.values) >= 2:
            return measure, series.values[0], series.values[-1], max(series.values)
    return "", None, None, None


def _calls(record: Record) -> float | None:
    totals = [record.total(name) or 0.0 for name in record.metrics if name.startswith("calls/")]
    return math.fsum(totals) if totals else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
