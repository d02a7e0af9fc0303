"""Charts hold the right numbers, and numbers read well."""

import json
import re
from array import array
from html import unescape

import pytest

from mmrl.reporting.charts import Line, kept, line_chart, share_bar
from mmrl.reporting.formatting import duration, number
from mmrl.reporting.record import Series


def _series(*values: float) -> Series:
    return Series(array("d", range(0, 5 * len(values), 5)), array("d", values))


def test_a_chart_has_the_numbers_of_its_lines_and_the_ends_of_bands() -> None:
    lines = [Line("<b>", _series(0.5, 0.75), _series(0.25, 0.125), colour=2), Line("plain", _series(1 / 3))]
    chart = line_chart(lines, "score", (0, 5), 'a "label"')
    (data,) = re.findall('data-chart="([^"]*)"', chart)
    band = {"x": [0, 5], "y": [0.5, 0.75], "low": [0.25, 0.625], "high": [0.75, 0.875]}
    plain = {"name": "plain", "colour": 1, "x": [0], "y": [0.33333]}
    shown = {"unit": "score", "span": [0, 5], "lines": [{"name": "<b>", "colour": 2, **band}, plain]}
    assert json.loads(unescape(data)) == shown and "<b>" not in chart
    assert chart.count("a &quot;label&quot;") == 2, "for screen readers, and where there are no scripts"


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


def test_a_bar_of_shares_is_cut_where_each_share_ends() -> None:
    svg = share_bar([(0.25, 1), (0.75, 8)], "label")
    assert '<rect class="fill-1" x="0" y="0" width="250" height="10"/>' in svg
    assert '<rect class="fill-8" x="250" y="0" width="750" height="10"/>' in svg
