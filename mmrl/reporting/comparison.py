"""The page of `mmrl compare`: the curves of several runs on one axis, their settings, the same prompts side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrl.reporting.charts import Axis, Line, axis_chooser
from mmrl.reporting.compared_runs import MISSING, ComparedRun, differences, shown_value
from mmrl.reporting.curves import DIAGNOSTICS, Axes, Charts, Diagnostic, add_card, card, charts_grid
from mmrl.reporting.document import Section, grid, loading_nothing
from mmrl.reporting.formatting import NOTHING, breakable, count, counted, duration, number, shown_text
from mmrl.reporting.players import Players
from mmrl.reporting.record import Series, held_out
from mmrl.reporting.sample_pairs import folded, output, room_of
from mmrl.reporting.samples import Sample, Snapshot, read_snapshot, saved_iterations

MAX_OUTPUTS = 36  # of one section of samples, over all runs: a page that a browser still opens at once
MAX_VALUE = 300  # letters of a setting's value
MAX_NAME = 60  # letters of a finding's name
COSTS = {"network calls": "calls/", "seconds of training": "time/iteration"}  # an axis -> what it sums
TIMES = (
    Diagnostic("Time of an iteration", {"time/iteration": ""}, "seconds", "Without evaluations."),
    Diagnostic("Time to sample", {"time/rollout": ""}, "seconds", ""),
    Diagnostic("Time to score", {"time/score": ""}, "seconds", ""),
    Diagnostic("Time to update", {"time/update": ""}, "seconds", ""),
)

STYLE = """
.scroll { overflow-x: auto; padding: 0; }
.scroll table { min-width: max-content; }
.scroll th, .scroll td { padding: 8px 14px; }
.scroll th:first-child, .scroll td:first-child { position: sticky; left: 0; background: var(--card);
  padding-left: 18px; }
.scroll th:last-child, .scroll td:last-child { padding-right: 18px; }
.scroll .run { max-width: 15em; white-space: normal; color: var(--ink); }
.scroll td.value { max-width: 26em; min-width: 7em; vertical-align: top; white-space: pre-wrap; }
.scroll .key { max-width: 20em; min-width: 8em; vertical-align: top; }
.state { display: block; color: var(--soft); font-size: 12px; font-weight: 400; }
.scroll .best { color: var(--good); font-weight: 600; }
.scroll b.fatal { color: var(--bad); font-weight: 600; }
.legend .whole { color: var(--ink); font-weight: 600; min-width: 0; overflow-wrap: anywhere; }
.warning { overflow-wrap: anywhere; }
.beside { display: grid; gap: 12px; grid-template-columns: repeat(2, minmax(0, 1fr)); margin-top: auto; }
.beside.of-3 { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.beside.of-4 { grid-template-columns: repeat(4, minmax(0, 1fr)); }
.beside > div { min-width: 0; display: flex; flex-direction: column; gap: 6px; }
.beside .side { overflow-wrap: anywhere; margin: 0; }
.beside .swatch { margin-right: 4px; }
.beside table { margin-top: auto; }
@media (max-width: 640px) {
  .beside.of-3, .beside.of-4 { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .scroll .run, .scroll .key { max-width: 9.5em; min-width: 0; }
  .scroll th, .scroll td { padding: 8px 10px; }
  .scroll th:first-child, .scroll td:first-child { padding-left: 14px; }
}
"""


@dataclass(frozen=True)
class Saved:
    """The samples of a run at one iteration."""

    run: ComparedRun
    snapshot: Snapshot
    by_prompt: Mapping[tuple[str, int], Sample]  # (prompt, seed) -> sample


def comparison(runs: Sequence[ComparedRun]) -> str:
    """Returns the whole document. Raises ConfigError where saved samples are not what a run writes."""
    axes = axes_of(runs)
    last, best = saved_at_last(runs), saved_at_best(runs)
    is_other = any(one.snapshot.iteration != two.snapshot.iteration for one, two in zip(last, best, strict=True))
    about_best = "The saved iteration with the best held-out score of each run."
    sections = [
        Section("In numbers", "numbers", "", _numbers(runs)),
        Section("Curves", "curves", "", axis_chooser(axes.others) + grid("two", _scores(runs, axes))),
        Section("Settings that differ", "settings", *_settings(runs)),
        Section("The same prompts at the end", "last", *_beside(last, "The last saved iteration of each run.")),
        *([Section("The same prompts at their best", "best", *_beside(best, about_best))] if is_other else []),
        Section("Rewards", "rewards", "Each reward by itself.", charts_grid(_rewards(runs, axes))),
        Section("Diagnostics", "diagnostics", "", charts_grid(_diagnostics(runs, axes, _known(runs)))),
        Section("Time", "time", "", charts_grid(_diagnostics(runs, axes, TIMES))),
    ]
    title = f"{runs[0].label} and {len(runs) - 1} more, compared"
    return loading_nothing(title, _header(runs), sections, own_style=STYLE)


def axes_of(runs: Sequence[ComparedRun]) -> Axes:
    """Returns the axes of the page: iterations, and each cost that every run logged."""
    spans = [run.record.span for run in runs]
    others = []
    for name, prefix in COSTS.items():
        costs = [run.cost(prefix) for run in runs]
        if None not in costs:
            others.append(Axis(name, (0.0, max(max(cost.values()) for cost in costs if cost))))
    return Axes((min(first for first, _ in spans), max(last for _, last in spans)), tuple(others))


def lines_of(runs: Sequence[ComparedRun], metric: str, axes: Axes) -> list[Line]:
    """Returns the line of a metric for each run that has finite values of it, with the colour of the run."""
    return [
        Line(run.label, series, colour=run.colour, others=_places(run, series, axes))
        for run in runs
        if (series := run.record.finite(metric))
    ]


def _places(run: ComparedRun, series: Series, axes: Axes) -> tuple[list[float], ...]:
    """Returns what the run had cost at each value of a series, one list for each further axis."""
    places = []
    for axis in axes.others:
        cost = run.cost(COSTS[axis.name]) or {}
        order = sorted(cost)
        spent, at, place = 0.0, 0, list[float]()
        for iteration in series.iterations:
            if place and at and iteration < order[at - 1]:  # the log goes back, as after a resume by an older mmrl
                spent, at = 0.0, 0
            while at < len(order) and order[at] <= iteration:
                spent, at = cost[order[at]], at + 1
            place.append(spent)
        places.append(place)
    return tuple(places)


def _header(runs: Sequence[ComparedRun]) -> str:
    names = "".join(
        f'<span><i class="swatch back-{run.colour}"></i><span class="whole">{breakable(run.label)}</span></span>'
        for run in runs
    )
    unfinished = [run.label for run in runs if not run.numbers.is_finished]
    measures = {run.numbers.measure for run in runs if run.numbers.measure}
    warnings = []
    if unfinished:
        names_of = ", ".join(map(shown_text, unfinished))
        warnings.append(
            f"This run did not finish: {names_of}. Its numbers are those it logged so far."
            if len(unfinished) == 1
            else f"These runs did not finish: {names_of}. Their numbers are those they logged so far."
        )
    if len(measures) > 1:
        named = "; ".join(map(shown_text, sorted(measures)))
        warnings.append(f"The scores are of different things and cannot be compared: {named}.")
    shown = "".join(f'<p class="warning">{text}</p>' for text in warnings)
    return (
        f'<header><p class="eyebrow">mmrl compare</p><h1>{len(runs)} runs</h1>'
        f'<p class="legend">{names}</p>{shown}</header>'
    )


def _numbers(runs: Sequence[ComparedRun]) -> str:
    """Returns the table of headline numbers, a run in each row; the best end is marked where all are of one measure."""
    ends = [run.numbers.after for run in runs if run.numbers.after is not None]
    is_one_measure = len({run.numbers.measure for run in runs}) == 1
    best = number(max(ends)) if is_one_measure and len(set(map(number, ends))) > 1 else None
    others = list(dict.fromkeys(other.name for run in runs for other in run.numbers.others))
    rows = "".join(_row(run, others, best) for run in runs)
    heads = ["before", "after", "best", *map(_words, others), "findings", "iterations", "time", "network calls"]
    columns = "".join(f'<th class="right">{head}</th>' for head in heads)
    head = f"<thead><tr><th>run</th>{columns}</tr></thead>"
    return f'<div class="card scroll"><table>{head}<tbody>{rows}</tbody></table></div>'


def _row(run: ComparedRun, others: Sequence[str], best: str | None) -> str:
    numbers = run.numbers
    changes = {one.name: f"{number(one.before)} &rarr; {number(one.after)}" for one in numbers.others}
    state = ", ".join(filter(None, [numbers.measure, "" if numbers.is_finished else "not finished"]))
    cells = [
        number(numbers.before),
        number(numbers.after),
        number(numbers.best),
        *(changes.get(name, NOTHING) for name in others),
        _findings(run),
        count(numbers.iterations),
        NOTHING if numbers.seconds is None else duration(numbers.seconds),
        NOTHING if numbers.network_calls is None else count(numbers.network_calls),
    ]
    marked = ["right best" if n == 1 and cell == best else "right" for n, cell in enumerate(cells)]
    shown = "".join(f'<td class="{mark}">{cell}</td>' for mark, cell in zip(marked, cells, strict=True))
    note = f'<span class="state">{shown_text(state)}</span>' if state else ""
    swatch = f'<i class="swatch back-{run.colour}"></i>'
    return f'<tr><th scope="row" class="run">{swatch}{breakable(run.label)}{note}</th>{shown}</tr>'


def _findings(run: ComparedRun) -> str:
    """Returns the number of the run's findings, and the name of the worst; a dash where it has none but notes."""
    if not run.findings:
        return NOTHING
    num_fatal = sum(one.severity == "fatal" for one in run.findings)
    num_warnings = len(run.findings) - num_fatal
    parts = [f'<b class="fatal">{num_fatal} fatal</b>'] if num_fatal else []
    parts += [counted(num_warnings, "warning")] if num_warnings else []
    name = run.findings[0].name
    shown = breakable(name if len(name) <= MAX_NAME else name[:MAX_NAME] + "...")
    return f'{", ".join(parts)}<span class="state">{shown}</span>'


def _scores(runs: Sequence[ComparedRun], axes: Axes) -> list[str]:
    samplers = dict.fromkeys(["", *(name for run in runs for name in run.record.other_samplers)])
    charts = {
        f"{held_out(name)}/score": Diagnostic(
            f"Held-out score, {name}" if name else "Held-out score",
            *({}, "score", "Prompts that training never sees; iteration 0 is before training."),
        )
        for name in samplers
    }
    charts["reward/mean"] = Diagnostic("Training reward", {}, "reward", "Mean over the samples of an iteration.")
    return [card(axes, chart, lines) for metric, chart in charts.items() if (lines := lines_of(runs, metric, axes))]


def _rewards(runs: Sequence[ComparedRun], axes: Axes) -> Charts:
    charts = Charts([], [])
    for metric in dict.fromkeys(name for run in runs for name in run.record.metrics):
        group, _, inner = metric.partition("/")
        name, _, last = inner.rpartition("/")
        if not name or last != "mean" or not (group == "reward" or group.startswith(held_out(""))):
            continue
        how = "in training" if group == "reward" else group.replace("_", "-", 1).replace("out_", "out, ")
        if lines := lines_of(runs, metric, axes):
            add_card(charts, axes, Diagnostic(f"{name}, {how}", {}, "reward", ""), lines)
    return charts


def _known(runs: Sequence[ComparedRun]) -> list[Diagnostic]:
    """Returns the known charts, one for each metric, and those of all other metrics of the optimizer."""
    known = [
        Diagnostic(f"{one.title}: {name}" if len(one.metrics) > 1 else one.title, {metric: ""}, one.unit, one.hint)
        for one in DIAGNOSTICS
        for metric, name in one.metrics.items()
    ]
    names = {metric for one in known for metric in one.metrics}
    others = dict.fromkeys(
        metric
        for run in runs
        for metric in run.record.metrics
        if metric.startswith(("loss/", "optimizer/", "groups/")) and metric not in names
    )
    return [*known, *(Diagnostic(metric, {metric: ""}, "", "") for metric in others)]


def _diagnostics(runs: Sequence[ComparedRun], axes: Axes, shown: Sequence[Diagnostic]) -> Charts:
    charts = Charts([], [])
    for diagnostic in shown:
        (metric,) = diagnostic.metrics
        having = [run.record.metrics[metric] for run in runs if metric in run.record.metrics]
        if having:
            broken = sum(series.num_not_finite for series in having)
            add_card(charts, axes, diagnostic, lines_of(runs, metric, axes), broken)
    return charts


def _settings(runs: Sequence[ComparedRun]) -> tuple[str, str]:
    """Returns a sentence on the settings, and their table: a row for each one that differs."""
    configured = [run for run in runs if run.settings is not None]
    unread = ", ".join(shown_text(run.label) for run in runs if run.settings is None)
    about = f"No settings can be read of {unread}." if unread else ""
    rows = differences(runs)
    if len(configured) < 2:
        return about, f'<p class="constant">{about}</p>'
    if not rows:
        return about, '<p class="constant">None: these runs have the same settings.</p>'
    heads = "".join(
        f'<th class="run"><i class="swatch back-{run.colour}"></i>{breakable(run.label)}</th>' for run in configured
    )
    body = "".join(
        f'<tr><th scope="row" class="key">{breakable(name)}</th>'
        + "".join(f'<td class="value">{_value(value)}</td>' for value in row)
        + "</tr>"
        for name, row in rows.items()
    )
    table = f"<table><thead><tr><th>setting</th>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return about, f'<div class="card scroll">{table}</div>'


def _value(value: object) -> str:
    text = shown_value(value)
    cut = text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "..."
    return breakable(cut) if value is not MISSING else f'<span class="side">{NOTHING}</span>'


def saved_at_last(runs: Sequence[ComparedRun]) -> list[Saved]:
    """Returns the last saved samples of each run that saved some."""
    return [_saved(run, *list(snapshots.items())[-1]) for run in runs if (snapshots := saved_iterations(run.folder))]


def saved_at_best(runs: Sequence[ComparedRun]) -> list[Saved]:
    """Returns the samples of each run that saved some at its iteration of the best held-out score; the last where
    there is no score.
    """
    chosen = []
    for run in runs:
        if not (snapshots := saved_iterations(run.folder)):
            continue
        series = run.record.finite(f"{held_out('')}/score")
        scores = dict(zip(map(int, series.iterations), series.values, strict=True)) if series else {}
        scored = [iteration for iteration in snapshots if iteration in scores]
        best = max(scored, key=lambda iteration: (scores[iteration], iteration), default=max(snapshots))
        chosen.append(_saved(run, best, snapshots[best]))
    return chosen


def _saved(run: ComparedRun, iteration: int, path: Path) -> Saved:
    snapshot = read_snapshot(iteration, path)
    return Saved(run, snapshot, {(sample.prompt, sample.seed): sample for sample in snapshot.samples})


def _beside(saved: Sequence[Saved], about: str) -> tuple[str, str]:
    """Returns a sentence, and a card for each prompt and seed of at least two runs."""
    if not saved:
        return "", ""
    keys = dict.fromkeys(key for one in saved for key in one.by_prompt)
    common = [key for key in keys if sum(key in one.by_prompt for one in saved) >= 2]
    if not common:
        return about, '<p class="constant">No two of these runs saved samples of the same prompt and seed.</p>'
    shown = common[: max(1, MAX_OUTPUTS // len(saved))]
    cut = f" {len(shown)} of {len(common)} prompts are shown." if len(shown) < len(common) else ""
    having = [[one for one in saved if key in one.by_prompt] for key in shown]
    room = room_of([one.by_prompt[key] for key, ones in zip(shown, having, strict=True) for one in ones])
    if len(saved) > 2:
        room = " full" if room or len(saved) > 4 else " wide"
    players = Players()
    cards = [_prompt(key, ones, players) for key, ones in zip(shown, having, strict=True)]
    num_open = 2 if room == " full" else 4
    return f"{about} The same prompt and seed.{cut}", folded(cards, room, num_open)


def _prompt(key: tuple[str, int], saved: Sequence[Saved], players: Players) -> str:
    first = saved[0].by_prompt[key]
    sides = "".join(_side(one.run, one.snapshot.iteration, one.by_prompt[key], players) for one in saved)
    more = f", first of {first.num_images} images" if first.num_images > 1 and first.text is not None else ""
    columns = min(4, len(saved))
    return (
        f'<article class="card pair"><div><p class="prompt">{shown_text(first.question)}</p>'
        f'<p class="seed">seed {key[1]}{more}</p></div><div class="beside of-{columns}">{sides}</div></article>'
    )


def _side(run: ComparedRun, iteration: int, sample: Sample, players: Players) -> str:
    rows = "".join(
        f'<tr><th scope="row">{breakable(name)}</th><td class="right">{number(score)}</td></tr>'
        for name, score in sample.scores.items()
    )
    scores = f"<table><tbody>{rows}</tbody></table>" if rows else ""
    name = f'<i class="swatch back-{run.colour}"></i>{breakable(run.label)}, iteration {count(iteration)}'
    return f'<div><p class="side">{name}</p>{output(sample, run.label, players)}{scores}</div>'


def _words(name: str) -> str:
    return shown_text(name.replace("_", " "))
