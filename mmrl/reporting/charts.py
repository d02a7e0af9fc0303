"""Charts as inline SVG: a line chart with bands, and a bar of shares.

Not by plotly or bokeh, whose scripts of 1 to 5 MB would stand in every report; nor by matplotlib, whose SVG shows no
values under the pointer, has inline styles that the page's policy forbids, and does not follow a dark theme.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate

from mmrl.reporting.formatting import tick_label
from mmrl.reporting.record import Series

NUM_BUCKETS = 120  # a chart is about 500 pixels wide; more points than 4 per bucket cannot be distinguished
MAX_MARKED = 40  # markers on more points than this only make the line thick


@dataclass(frozen=True)
class Scale:
    """A linear map of [low, high] in the metric's unit to [start, end] in pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True)
class Line:
    """One line of a chart, with a band of `spread` above and below it where there is one."""

    name: str
    series: Series  # finite values only, at least one
    spread: Series | None = None  # half the height of the band, at the same iterations
    colour: int = 1  # of the theme's palette, from 1


@dataclass(frozen=True)
class Frame:
    """The size of a chart and the room of its plot inside, in SVG pixels; y runs down."""

    width: int = 520
    height: int = 260
    left: int = 44
    right: int = 14
    top: int = 28
    bottom: int = 48

    def x(self, low: float, high: float) -> Scale:
        return Scale(low, high, self.left, self.width - self.right)

    def y(self, low: float, high: float) -> Scale:
        return Scale(low, high, self.height - self.bottom, self.top)


def ticks(low: float, high: float, most: int) -> tuple[list[float], float]:
    """Returns about `most` round values that span [low, high], and the step between them.

    The step is 1, 2 or 5 times a power of ten. A range of no height is widened first.
    """
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = (low - 0.1 * abs(low), high + 0.1 * abs(high)) if high else (0.0, 1.0)
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
    return [index * step for index in range(first, last + 1)], step


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


def line_chart(lines: Sequence[Line], unit: str, iterations: tuple[float, float], label: str) -> str:
    """Returns the chart of `lines` over `iterations` (first, last), as an <svg>; `label` is for screen readers."""
    rows = [_rows(line) for line in lines]
    values = [value for points in rows for _, low, middle, high in points for value in (low, middle, high)]
    marks, step = ticks(min(values), max(values), 5)
    frame = Frame(left=max(Frame.left, 12 + 10 * max(len(tick_label(mark, step)) for mark in marks)))
    low, high = iterations if iterations[1] > iterations[0] else (iterations[0] - 0.5, iterations[0] + 0.5)
    x, y = frame.x(low, high), frame.y(marks[0], marks[-1])
    rendered = "".join(_render(line, points, x, y) for line, points in zip(lines, rows, strict=True))
    hover = [
        {
            "name": line.name,
            "x": [point[0] for point in points],
            "y": [float(f"{point[2]:.5g}") for point in points],
        }
        for line, points in zip(lines, rows, strict=True)
    ]
    across = [x.low, x.high, x.start, x.end]
    return (
        f'<svg class="chart" viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{escape(label)}" '
        f'data-across="{escape(json.dumps(across))}" data-lines="{escape(json.dumps(hover))}">'
        f"{_axes(frame, x, y, marks, step)}"
        f'<text class="unit" x="{frame.left}" y="15">{escape(unit)}</text>'
        f'<text class="unit" x="{_px((x.start + x.end) / 2)}" y="{frame.height - 4}" text-anchor="middle">'
        "iteration</text>"
        f'{rendered}<line class="cursor" x1="0" x2="0" y1="{frame.top}" y2="{frame.height - frame.bottom}"/></svg>'
    )


def share_bar(shares: Sequence[tuple[float, int]], label: str) -> str:
    """Returns a bar cut into shares (in [0, 1], in sum 1), each with its colour of the palette, as an <svg>."""
    edges = [1000 * end for end in accumulate((share for share, _ in shares), initial=0.0)]
    parts = "".join(
        f'<rect class="fill-{colour}" x="{_px(start)}" y="0" width="{_px(1000 * share)}" height="10"/>'
        for (share, colour), start in zip(shares, edges, strict=False)
    )
    return (
        f'<svg class="shares" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{parts}</svg>'
    )


def _rows(line: Line) -> list[tuple[float, float, float, float]]:
    """Returns (iteration, bottom of the band, value, top of the band) of every rendered point."""
    middle = line.series.values
    half = line.spread.values if line.spread else [0.0] * len(middle)
    low = [value - spread for value, spread in zip(middle, half, strict=True)]
    high = [value + spread for value, spread in zip(middle, half, strict=True)]
    chosen = kept([low, middle, high] if line.spread else [middle])
    return [(line.series.iterations[row], low[row], middle[row], high[row]) for row in chosen]


def _render(line: Line, points: list[tuple[float, float, float, float]], x: Scale, y: Scale) -> str:
    parts = []
    if line.spread:
        around = [(row[0], row[3]) for row in points] + [(row[0], row[1]) for row in reversed(points)]
        parts.append(f'<path class="band fill-{line.colour}" d="{_path(around, x, y)}Z"/>')
    thin = " thin" if len(points) > 150 else ""
    middle = [(row[0], row[2]) for row in points]
    parts.append(f'<path class="line{thin} stroke-{line.colour}" d="{_path(middle, x, y)}"/>')
    marked = middle if len(middle) <= MAX_MARKED else middle[-1:]
    parts += [f'<circle class="fill-{line.colour}" cx="{_px(x(a))}" cy="{_px(y(b))}" r="3"/>' for a, b in marked]
    return "".join(parts)


def _path(points: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{_px(x(a))} {_px(y(b))}" for a, b in points)


def _axes(frame: Frame, x: Scale, y: Scale, marks: Sequence[float], step: float) -> str:
    parts = []
    for mark in marks:
        height = _px(y(mark))
        parts.append(
            f'<line class="rule" x1="{frame.left}" x2="{frame.width - frame.right}" y1="{height}" y2="{height}"/>'
        )
        parts.append(
            f'<text x="{frame.left - 8}" y="{height}" dy="0.35em" text-anchor="end">{tick_label(mark, step)}</text>'
        )
    across, step = ticks(x.low, x.high, 6)
    for mark in across:
        if x.low <= mark <= x.high and mark == round(mark):
            text = tick_label(mark, max(step, 1.0))  # iterations are whole
            parts.append(
                f'<text x="{_px(x(mark))}" y="{frame.height - frame.bottom + 21}" text-anchor="middle">{text}</text>'
            )
    return "".join(parts)


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
