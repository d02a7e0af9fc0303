"""Charts map values to the right pixels, and numbers read well."""

import re
from array import array

import pytest

from mmrl.reporting.charts import Line, Scale, kept, line_chart, share_bar, ticks
from mmrl.reporting.formatting import duration, number, tick_label
from mmrl.reporting.record import Series


def test_a_scale_maps_by_hand() -> None:
    assert Scale(0, 10, 50, 250)(2.5) == 100  # a quarter of 200 after 50
    assert Scale(-1, 1, 200, 20)(0.5) == 65  # y runs down: three quarters of 180 above 200


def _series(*values: float) -> Series:
    return Series(array("d", range(0, 5 * len(values), 5)), array("d", values))


def test_a_line_goes_through_pixels_worked_out_by_hand() -> None:
    # 520 x 260 with room 44, 14, 28, 48 (left, right, top, bottom): x from 44 to 506, y from 212 up to 28
    svg = line_chart([Line("score", _series(0.0, 0.5, 1.0))], "score", (0, 10), "label")
    assert 'd="M44 212L275 120L506 28"' in svg
    assert '<circle class="fill-1" cx="275" cy="120" r="3"/>' in svg
    # the band of 0.5 +- 0.25 to 0.75 +- 0.25: [0.2, 1] has ticks every 0.2, so 0.25 is 1/16 up, 0.75 is 11/16
    svg = line_chart([Line("score", _series(0.5, 0.75), _series(0.25, 0.25))], "score", (0, 5), "label")
    assert 'd="M44 85.5L506 28L506 143L44 200.5Z"' in svg


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.437, 0.983, [0.4, 0.6, 0.8, 1.0]),
        (-3e-5, 6e-5, [-4e-5, -2e-5, 0, 2e-5, 4e-5, 6e-5]),
        (0.0, 0.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (10.0, 10.0, [9, 9.5, 10, 10.5, 11]),
    ],
)
def test_ticks_are_round_and_span_the_values(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5)[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("last", "shown"), [(2, "012"), (3, "0123"), (5, "012345")])
def test_iterations_of_short_runs_are_whole_numbers(last: int, shown: str) -> None:
    line = Line("a", Series(array("d", range(last + 1)), array("d", [0.5] * (last + 1))))
    chart = line_chart([line], "reward", (0, last), "a")
    assert re.findall(r'text-anchor="middle">([^<]*)</text>', chart)[: len(shown)] == list(shown)


def test_few_points_are_all_kept_and_of_many_the_ends_and_extremes() -> None:
    assert kept([[3.0, 1.0, 2.0]], num_buckets=2) == [0, 1, 2]
    flat, other = [0.0] * 10_000, [0.0] * 10_000
    flat[1234], flat[1250], other[8765] = 9.0, -9.0, 5.0
    rows = kept([flat, other], num_buckets=20)
    assert {0, 1234, 1250, 8765, 9_999} <= set(rows)
    assert rows == sorted(set(rows))
    assert len(rows) <= 20 * 6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.98254, "0.983"),
        (1.0, "1.000"),
        (-12.345, "\N{MINUS SIGN}12.35"),
        (1234.5, "1,234"),
        (1.234e-5, "1.23e\N{MINUS SIGN}5"),
        (2.5e7, "2.50e7"),
        (0.0, "0.000"),
        (7, "7"),
        (None, "\N{EN DASH}"),
        (float("nan"), "\N{EN DASH}"),
    ],
)
def test_numbers_read_well(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.052, "0.05 s"), (27.4, "27 s"), (59.7, "1 min 00 s"), (192, "3 min 12 s"), (14_700, "4 h 05 min")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (0.30000000000000004, 0.1, "0.3"),
        (1.000005, 5e-6, "1.000005"),
        (2.5e-5, 5e-6, "2.5e\N{MINUS SIGN}5"),
        (5000.0, 1000.0, "5,000"),
        (0.0, 1e-6, "0"),
        (300_000.0, 100_000.0, "3e5"),
    ],
)
def test_tick_labels_have_the_digits_they_need(value: float, step: float, text: str) -> None:
    assert tick_label(value, step) == text


def test_a_bar_of_shares_is_cut_where_each_share_ends() -> None:
    svg = share_bar([(0.25, 1), (0.75, 8)], "label")
    assert '<rect class="fill-1" x="0" y="0" width="250" height="10"/>' in svg
    assert '<rect class="fill-8" x="250" y="0" width="750" height="10"/>' in svg
