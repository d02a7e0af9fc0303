"""Rewards that move apart over a run: where one rises as another falls, the policy may be hacking it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from statistics import fmean

from mmrl.core.config import label_of
from mmrl.reporting.formatting import number
from mmrl.reporting.record import Record

FEWEST = 8  # iterations below which no trend is reported
SURE = 3.3  # standard deviations of Spearman's rho without a trend: about one in a thousand
LARGE = 0.2  # of a reward's own spread within an iteration: smaller changes are no trend that matters
MAX_NOTES = 6


@dataclass(frozen=True)
class Trend:
    """The direction of a reward over the run."""

    name: str
    first: float  # mean of the first fifth of the run
    last: float  # mean of its last fifth
    sign: int  # 1: it rose, -1: it fell, 0: neither for sure


def opposed(record: Record) -> list[str]:
    """Returns sentences (HTML) about pairs of rewards of which one rose while the other fell."""
    lowered = _negative(record)
    names = [
        name.removeprefix("reward/").removesuffix("/mean")
        for name in record.metrics
        if name.startswith("reward/") and name.endswith("/mean") and name != "reward/mean"
    ]
    trends = [trend for name in names if name not in lowered and (trend := _trend(record, name))]
    pairs = product((t for t in trends if t.sign > 0), [t for t in trends if t.sign < 0])
    return [
        f"<b>{escape(up.name)}</b> rose ({number(up.first)} &rarr; {number(up.last)}) while <b>{escape(down.name)}</b> "
        f"fell ({number(down.first)} &rarr; {number(down.last)}): one may be bought with the other. Look at the "
        "samples, and at the weights of the two."
        for up, down in list(pairs)[:MAX_NOTES]
    ]


def _trend(record: Record, name: str) -> Trend | None:
    mean, std = record.finite(f"reward/{name}/mean"), record.finite(f"reward/{name}/std")
    if mean is None or len(mean.values) < FEWEST:
        return None
    values = list(mean.values)
    part = max(2, len(values) // 5)
    first, last = fmean(values[:part]), fmean(values[-part:])
    spread = fmean(std.values) if std is not None else 0.0
    rho = rank_correlation(values)
    is_sure = abs(rho) * math.sqrt(len(values) - 1) > SURE and abs(last - first) > LARGE * spread
    return Trend(name, first, last, int(math.copysign(1, rho)) if is_sure and (last - first) * rho > 0 else 0)


def rank_correlation(values: Sequence[float]) -> float:
    """Returns Spearman's rho of values with their places, in [-1, 1]; all equal: 0."""
    from scipy.stats import spearmanr

    return float(spearmanr(range(len(values)), values).statistic) if len(set(values)) > 1 else 0.0


def _negative(record: Record) -> set[str]:
    """Returns the names of rewards that are to be lowered."""
    rewards = record.settings.get("rewards")
    negative: set[str] = set()
    for one in rewards if isinstance(rewards, list) else []:
        weight = one.get("weight") if isinstance(one, dict) else None
        if isinstance(weight, int | float) and weight < 0:
            negative.add(str(label_of({"name": "", **one})))
    return negative
