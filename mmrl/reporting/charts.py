"""Line charts with bands by uPlot, and a bar of shares as inline SVG.

uPlot (Leon Sorokin, MIT, version 1.6.32 of npm) stands in this folder: the page holds it, and the script of `theme`
lets it draw the numbers in the page. Not plotly or bokeh, whose scripts of 1 to 5 MB would stand in every report; nor
matplotlib, whose pictures show no values under the pointer and do not follow a dark theme.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from itertools import accumulate
from typing import Any

from mmrl.reporting.formatting import shown_text, without_hidden
from mmrl.reporting.record import Series

ITERATION = "iteration"  # the usual horizontal axis
NUM_BUCKETS = 120  # a chart is about 500 pixels wide; more points than 4 per bucket cannot be distinguished


@cache
def library() -> tuple[str, str]:
    """Returns the style and the script of uPlot."""
    style, script = (
        files(__package__).joinpath(f"uPlot.{end}").read_text("utf-8") for end in ("min.css", "iife.min.js")
    )
    return style, script


@dataclass(frozen=True)
class Line:
    """One line of a chart, with a band of `spread` above and below it where there is one."""

    name: str
    series: Series  # finite values only, at least one
    spread: Series | None = None  # half the height of the band, at the same iterations
    colour: int = 1  # of the theme's palette, from 1
    others: tuple[Sequence[float], ...] = ()  # the places of the values on further axes, as many as there are values


@dataclass(frozen=True)
class Axis:
    """A horizontal axis that a reader may choose instead of iterations, such as the seconds of training."""

    name: str
    span: tuple[float, float]  # of the chart: first, last


def kept(columns: Sequence[Sequence[float]], num_buckets: int = NUM_BUCKETS) -> list[int]:
    """Returns the rows to render: of every bucket of rows its ends and the extremes of each column; all, where few.

    `columns` have the same length N; the result is increasing, at most `num_buckets * (2 + 2 * len(columns))` long.
    """
    total = len(columns[0])
    if total <= num_buckets * (2 + 2 * len(columns)):
        return list(range(total))
    rows: set[int] = set()
    for bucket in range(num_buckets):
        start, end = bucket * total // num_buckets, (bucket + 1) * total // num_buckets
        rows |= {start, end - 1}
        for column in columns:
            rows.add(min(range(start, end), key=column.__getitem__))
            rows.add(max(range(start, end), key=column.__getitem__))
    return sorted(rows)


def line_chart(
    lines: Sequence[Line],
    unit: str,
    iterations: tuple[float, float],
    label: str,
    others: Sequence[Axis] = (),
    *,
    name: str = ITERATION,
) -> str:
    """Returns the place of the chart of `lines` over `iterations` (first, last), with its numbers.

    Args:
        label: for screen readers, and for readers without scripts.
        others: further axes, whose places each line has in the same order; `axis_chooser` switches to them.
        name: of the horizontal axis, where it is no iteration.
    """
    chart: dict[str, Any] = {"unit": unit, "span": iterations, "lines": [_numbers(line) for line in lines]}
    if name != ITERATION:
        chart["along"] = name
    if others:
        chart["others"] = [{"name": axis.name, "span": axis.span} for axis in others]
    return (
        f'<div class="chart" role="img" aria-label="{shown_text(label)}" data-chart="{escape(json.dumps(chart))}">'
        f"<noscript>{shown_text(label)}</noscript></div>"
    )


def axis_chooser(others: Sequence[Axis]) -> str:
    """Returns the list from which a reader chooses the horizontal axis of all charts; nothing without further axes."""
    if not others:
        return ""
    names = "".join(f'<option value="{n}">{shown_text(name)}</option>' for n, name in enumerate(_names(others)))
    return f'<p class="chooser"><label for="axis">curves by</label> <select id="axis">{names}</select></p>'


def _names(others: Sequence[Axis]) -> list[str]:
    return [ITERATION, *(axis.name for axis in others)]


def share_bar(shares: Sequence[tuple[float, int]], label: str) -> str:
    """Returns a bar cut into shares (in [0, 1], in sum 1), each with its colour of the palette, as an <svg>."""
    edges = [1000 * end for end in accumulate((share for share, _ in shares), initial=0.0)]
    parts = "".join(
        f'<rect class="fill-{colour}" x="{_px(start)}" y="0" width="{_px(1000 * share)}" height="10"/>'
        for (share, colour), start in zip(shares, edges, strict=False)
    )
    return (
        f'<svg class="shares" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{shown_text(label)}">{parts}</svg>'
    )


def _numbers(line: Line) -> dict[str, Any]:
    """Returns the points of a line that are shown, and the ends of its band where it has one."""
    middle = line.series.values
    half = line.spread.values if line.spread else [0.0] * len(middle)
    ends = {
        "low": [value - spread for value, spread in zip(middle, half, strict=True)],
        "high": [value + spread for value, spread in zip(middle, half, strict=True)],
    }
    columns = {"y": middle} | (ends if line.spread else {})
    chosen = kept(list(columns.values()))
    shown = {name: [float(f"{values[row]:.5g}") for row in chosen] for name, values in columns.items()}
    places = {"x": [line.series.iterations[row] for row in chosen]}
    if line.others:
        places["xs"] = [[float(f"{place[row]:.7g}") for row in chosen] for place in line.others]  # type: ignore[misc]
    return {"name": without_hidden(line.name), "colour": line.colour, **places, **shown}


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
