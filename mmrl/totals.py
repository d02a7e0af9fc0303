"""Weighted sums of rewards that are too large to reckon with."""

import math
from collections.abc import Sequence
from dataclasses import replace

from mmrl.contracts import ConfigError
from mmrl.data import Scores

LARGEST = 1e18  # of a sum or a weight: its square, which a standard deviation needs, is still a float32


def check_weight(name: str, weight: float) -> None:
    """Raises ConfigError for the weight of a reward that float32 cannot reckon with."""
    if not math.isfinite(weight) or abs(weight) > LARGEST:
        raise ConfigError(f"the weight of reward {name!r} must be a finite number of at most {LARGEST:g}, got {weight}")


def without_too_large(scores: Scores, failures: Sequence[str | None]) -> tuple[Scores, tuple[str | None, ...]]:
    """The scores with samples of a larger sum as failed ones, and the first failure of each reward with it."""
    too_large = scores.valid & ~(scores.total.abs() <= LARGEST)
    if not too_large.any():
        return scores, tuple(failures)
    said = f"the weighted sum of the rewards is {float(scores.total[too_large][0]):g}"
    counted = next((number for number, weight in enumerate(scores.weights) if weight != 0), 0)
    told = [failure or (said if number == counted else None) for number, failure in enumerate(failures)]
    return replace(scores, valid=scores.valid & ~too_large), tuple(told)
