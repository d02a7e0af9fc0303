"""The headline of a report: what a run achieved, in numbers."""

import math
from dataclasses import dataclass
from typing import Any

from mmrl.reporting.record import Record, held_out


@dataclass(frozen=True)
class Change:
    """The held-out score under a further sampler, before and after training."""

    name: str
    before: float
    after: float


@dataclass(frozen=True)
class Headline:
    """The scores before and after training, and the cost; None where the run did not log it."""

    measure: str  # what `before` and `after` are of
    before: float | None
    after: float | None
    best: float | None
    others: list[Change]
    seconds: float | None  # of training
    iterations: int
    network_calls: float | None
    is_finished: bool


def headline(record: Record) -> Headline:
    """Returns the headline of summary.json; what is missing there, as after a kill, comes from the metrics."""
    summary = record.summary
    measure, before, after, best = _measured(record)
    seconds = _number(summary.get("train_seconds"))
    calls = _number(summary.get("network_calls"))
    return Headline(
        measure=measure,
        before=before,
        after=after,
        best=best,
        others=[change for name in record.other_samplers if (change := _other(record, name))],
        seconds=record.total("time/iteration") if seconds is None else seconds,
        iterations=int(_number(summary.get("iterations")) or record.span[1]),
        network_calls=_calls(record) if calls is None else calls,
        is_finished=summary.get("is_complete") is True,
    )


def _measured(record: Record) -> tuple[str, float | None, float | None, float | None]:
    scores = record.summary.get(held_out(""))
    if isinstance(scores, dict):
        before, after = _number(scores.get("before")), _number(scores.get("after"))
        if before is not None and after is not None:
            measure = f"held-out score ({scores['name']})" if scores.get("name") else "held-out score"
            return measure, before, after, _number(scores.get("best"))
    for name, measure in (("held_out/score", "held-out score"), ("reward/mean", "training reward")):
        series = record.finite(name)
        if series is not None and len(series.values) >= 2:
            return measure, series.values[0], series.values[-1], max(series.values)
    return "", None, None, None


def _other(record: Record, name: str) -> Change | None:
    scores = record.summary.get(held_out(name))
    before, after = (
        (_number(scores.get(end)) for end in ("before", "after")) if isinstance(scores, dict) else (None, None)
    )
    series = record.finite(f"{held_out(name)}/score")
    if before is not None and after is not None:
        return Change(name, before, after)
    return Change(name, series.values[0], series.values[-1]) if series and len(series.values) >= 2 else None


def _calls(record: Record) -> float | None:
    totals = [record.total(name) or 0.0 for name in record.metrics if name.startswith("calls/")]
    return math.fsum(totals) if totals else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
