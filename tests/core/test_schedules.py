"""Schedules over iterations, by hand."""

import math

import pytest

from mmrl.core.schedules import Schedule
from tests.parameters import in_one_test


def test_values_by_hand() -> None:
    line = Schedule(start=1, end=3, first=2, last=6)
    assert [line(iteration) for iteration in (0, 2, 3, 4, 6, 99)] == [1, 1, 1.5, 2, 3, 3]
    wave = Schedule(start=0, end=1, last=4, shape="cosine")
    assert [wave(n) for n in range(5)] == pytest.approx([0, (1 - math.sqrt(0.5)) / 2, 0.5, (1 + math.sqrt(0.5)) / 2, 1])
    step = Schedule(start=5, end=7, last=3, shape="step")
    assert [step(n) for n in range(5)] == [5, 5, 5, 7, 7]


@in_one_test(
    ("settings", "message"),
    [
        ({"last": 0}, "0 <= first < last, got first 0 and last 0"),
        ({"first": -1, "last": 3}, "0 <= first < last"),
        ({"start": math.inf, "last": 3}, "must be finite, got inf"),
        ({"last": 3, "shape": "round"}, "one of linear, cosine, step, got 'round'"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**({"start": 0.0, "end": 1.0} | settings))  # type: ignore[arg-type]
