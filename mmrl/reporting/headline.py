"""The headline of a report: what a run achieved, in numbers."""

import math
from dataclasses import dataclass
from typing import Any

from mmrl.reporting.record import Record, Series, held_out

SURE = 2.0  # standard errors, which a change must exceed to be named
LARGEST = 2**53  # whole numbers below which floats are exact
RECENT = 20  # iterations, whose mean time says what is left


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
    planned: int | None  # iterations of the whole run
    network_calls: float | None
    is_finished: bool
    noise: float  # a change of `before` to `after` that chance alone may make; 0 where the run did not log it

    @property
    def is_sure(self) -> bool:
        """Whether the change is larger than chance may make it; False where there is no change."""
        return self.before is not None and self.after is not None and abs(self.after - self.before) > self.noise


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
        planned=_count(record, "iterations"),
        network_calls=_calls(record) if calls is None else calls,
        is_finished=summary.get("is_complete") is True,
        noise=_noise(record, measure),
    )


def seconds_left(record: Record) -> float | None:
    """Returns the seconds of training that are left by the mean of the last iterations; None where it is not known."""
    times, planned = record.finite("time/iteration"), _count(record, "iterations")
    if times is None or planned is None:
        return None
    recent = times.values[-RECENT:]
    left = max(0, planned - record.span[1]) * math.fsum(recent) / len(recent)
    most = _number(record.settings.get("max_seconds"))
    return left if most is None else min(left, max(0.0, most - math.fsum(times.values)))


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


def _noise(record: Record, measure: str) -> float:
    """Returns the change that `SURE` standard errors make; 0 where the run did not log what it takes.

    Of rewards the prompts are the units, which differ between iterations, and whose samples are alike. Held-out scores
    are of the same prompts and noise: their difference varies about as much as one of them.
    """
    if measure.startswith("held-out score"):
        return SURE * max(_ends(record.finite("held_out/standard_error")), default=0.0)
    ends, prompts = _ends(record.finite("reward/std")), _count(record, "prompts_per_iteration")
    return SURE * math.hypot(*ends) / math.sqrt(prompts) if prompts else 0.0


def _ends(series: Series | None) -> list[float]:
    return [series.values[0], series.values[-1]] if series is not None else []


def _count(record: Record, setting: str) -> int | None:
    """Returns a setting that is a count; None where the run has none that can be read."""
    value = record.settings.get(setting)
    return value if type(value) is int and 0 < value < LARGEST else None


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
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else None  # NaN is not
