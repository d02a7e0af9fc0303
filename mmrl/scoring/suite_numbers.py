"""The arithmetic of suites: one number of the scores of all samples, and its interval by resampling prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrl.core.suites import How

RESAMPLES, LEVEL = 2000, 0.95
AT_ONCE = 2**22  # numbers that are taken from prompts at once: bounds the memory


@dataclass(frozen=True)
class SampleScore:
    """The score of one sample; None where it could not be judged."""

    prompt: int
    value: float | None
    kind: str = ""
    over: float = 1.0  # what a ratio divides by: the sum of the values by the sum of these


@dataclass(frozen=True)
class Estimate:
    """A number, and the interval that holds it in `LEVEL` of all draws of as many prompts."""

    number: float
    low: float
    high: float
    prompts: int  # with at least one sample that was judged
    samples: int  # that were judged


@dataclass(frozen=True)
class _Stratum:
    """The prompts of one kind: of each the sum of its scores, and how many there are; of a ratio the sum of `over`."""

    sums: NDArray[np.float64]  # [P]
    counts: NDArray[np.float64]  # [P]


def estimate(
    scores: Sequence[SampleScore], how: How, at: float | None = None, *, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate | None:
    """Returns the number of all samples with its interval; None where none was judged, or a ratio has nothing below.

    A sample that could not be judged does not count. The interval is the percentile bootstrap (Efron and Tibshirani
    1993, chapter 13): prompts are taken anew with replacement, each with all of its samples, since samples of one
    prompt are no independent draws; for a mean of kinds as many of each kind as there are.

    Args:
        at: a score is 1 where it is at least this, else 0; None: it stays.
        seed: of the resampling.
    """
    judged = [one for one in scores if one.value is not None]
    if not judged:
        return None
    strata = _strata(judged, how, at)
    if not all(one.counts.sum() for one in strata):
        return None
    low, high = _interval(strata, seed, resamples)
    number = float(np.mean([one.sums.sum() / one.counts.sum() for one in strata]))
    return Estimate(number, low, high, len({one.prompt for one in judged}), len(judged))


def estimates_by_kind(
    scores: Sequence[SampleScore], how: How, at: float | None = None, *, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Estimate]:
    """Returns the number of each kind with its interval, by the name of the kind; of a mean of kinds each one's mean.

    Kinds of which no sample was judged are left out.
    """
    within: How = "mean" if how == "mean_of_kinds" else how
    kinds = sorted({one.kind for one in scores})
    own = {kind: [one for one in scores if one.kind == kind] for kind in kinds}
    found = {kind: estimate(rows, within, at, seed=seed, resamples=resamples) for kind, rows in own.items()}
    return {kind: one for kind, one in found.items() if one is not None}


def _strata(judged: Sequence[SampleScore], how: How, at: float | None) -> list[_Stratum]:
    """Returns the prompts by kind where kinds count alike, else all of them as one stratum."""
    by_kind: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for one in judged:
        assert one.value is not None, "only judged ones are here"
        value = one.value if at is None else float(one.value >= at)
        entry = (value, one.over if how == "ratio" else 1.0)
        by_kind.setdefault(one.kind if how == "mean_of_kinds" else "", {}).setdefault(one.prompt, []).append(entry)
    return [_stratum(by_kind[kind], how) for kind in sorted(by_kind)]


def _stratum(values: Mapping[int, Sequence[tuple[float, float]]], how: How) -> _Stratum:
    each = [[max(own)] if how == "best_of" else own for _, own in sorted(values.items())]
    sums = [sum(value for value, _ in own) for own in each]
    return _Stratum(np.array(sums), np.array([sum(below for _, below in own) for own in each]))


def _interval(strata: Sequence[_Stratum], seed: int, resamples: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    numbers = np.zeros(resamples)
    for one in strata:
        size = len(one.sums)
        rows = max(1, AT_ONCE // size)
        for start in range(0, resamples, rows):
            chosen = rng.integers(0, size, (min(rows, resamples - start), size))
            below = one.counts[chosen].sum(1)
            means = np.divide(one.sums[chosen].sum(1), below, out=np.zeros_like(below), where=below > 0)
            numbers[start : start + len(chosen)] += means / len(strata)
    low, high = np.quantile(numbers, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
