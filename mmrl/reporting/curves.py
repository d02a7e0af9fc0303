"""The report's cards of curves: held-out score, rewards, diagnostics."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrl.reporting.charts import ITERATION, Axis, Line, line_chart
from mmrl.reporting.document import grid
from mmrl.reporting.formatting import breakable, count, number, shown_text
from mmrl.reporting.record import Record, Series, held_out


@dataclass(frozen=True)
class Diagnostic:
    """A chart of some metrics, such as those of the optimizer's health, with a sentence on what to look for."""

    title: str
    metrics: dict[str, str]  # metric -> its name in the legend
    unit: str
    hint: str


@dataclass(frozen=True)
class Axes:
    """The horizontal axes of all charts of a page."""

    iterations: tuple[float, float]  # first, last
    others: tuple[Axis, ...] = ()
    name: str = ITERATION  # of what stands in place of iterations


DIAGNOSTICS = (
    Diagnostic(
        "Probability ratio",
        {"loss/ratio": "ratio"},
        "trained / old",
        "Healthy: close to 1. Exactly 1 when each rollout serves one step. A steady drift: the steps are too large.",
    ),
    Diagnostic(
        "Size of the log-ratio",
        {"loss/log_ratio_size": "mean of |log ratio|"},
        "nats",
        "Healthy: small and level. Growth means that the policy moves far from the one that drew the samples.",
    ),
    Diagnostic(
        "KL to the reference",
        {"loss/kl": "KL"},
        "nats",
        "Healthy: rises slowly from 0 and levels off. A jump means that the policy is leaving the reference behind.",
    ),
    Diagnostic(
        "Clipped share",
        {"loss/clip_fraction_low": "below the range", "loss/clip_fraction_high": "above the range"},
        "share of decisions",
        "Healthy: under about 0.3 on both sides. Beyond it few decisions still teach: lower the learning rate.",
    ),
    Diagnostic(
        "Entropy",
        {"policy/entropy": "of a decision"},
        "nats",
        "Healthy: falls slowly. Near 0 the answers to a prompt are all the same, and nothing is left to choose from.",
    ),
    Diagnostic(
        "Length of answers",
        {"answers/tokens": "tokens"},
        "tokens",
        "Healthy: as long as the task asks for. Growth up to the budget means that answers are cut.",
    ),
    Diagnostic(
        "Answers that count",
        {"answers/finished": "ended before the budget", "answers/understood": "read as an action"},
        "share of answers",
        "Healthy: near 1. What is cut or not understood can earn little and, if it is masked, teaches nothing.",
    ),
    Diagnostic(
        "Gradient norm",
        {"optimizer/grad_norm": "norm"},
        "before clipping",
        "Healthy: level, with rare spikes. Steady growth comes before divergence; 0 means that nothing is learned.",
    ),
    Diagnostic(
        "Loss",
        {"loss/total": "loss"},
        "loss",
        "Healthy: finite and without runaway growth. It need not fall: each rollout poses a new problem.",
    ),
    Diagnostic(
        "Degenerate groups",
        {"groups/degenerate": "groups"},
        "groups",
        "Healthy: few. Samples that all score alike give no gradient: prompts may be too easy or too hard.",
    ),
    Diagnostic(
        "Failed scores",
        {"reward/failed": "samples"},
        "samples",
        "Healthy: 0. These samples or episodes could not be judged and were left out of their groups.",
    ),
    Diagnostic("Learning rate", {"optimizer/learning_rate": "learning rate"}, "per step", "As the schedule sets it."),
)

PROPERTIES = {  # of samples: a sentence on what to look for
    "length": "Tokens of an answer, or words. Growth while the held-out score does not rise: length is paid for.",
    "lines": "Lines of an answer that are not empty.",
    "boxes": "Boxes and points that an answer writes.",
    "sharpness": "Variance of the Laplacian of the luma. Far from the first: noise, or empty pictures.",
    "saturation": "Mean of the largest less the smallest channel of a pixel.",
    "brightness": "Mean luma.",
    "motion": "Mean difference of neighbouring frames.",
    "frames": "Frames of a video.",
    "diversity": "How far the samples of a group differ. It falls while a model learns; at 0 there is one sample left.",
}
FOLLOWED = "Healthy: mostly within 0.4 of 0. Beyond it the reward may pay for this, whatever else it judges."

RESOURCES = (
    Diagnostic(
        "Time of an iteration",
        {"time/iteration": "all", "time/rollout": "rollout", "time/update": "update"},
        "seconds",
        "Healthy: level. Growth means longer answers, or a machine that others use.",
    ),
    Diagnostic(
        "Memory",
        {"memory/rollout": "rollout", "memory/update": "update", "memory/host": "host"},
        "GiB",
        "The peak of a GPU in each phase; on a CPU what the process holds after it, as host does. Steady growth is a "
        "leak.",
    ),
)


@dataclass(frozen=True)
class Charts:
    """The cards to show, and the metrics whose curves never move."""

    cards: list[str]
    constant: list[tuple[str, str]]  # a title, and HTML of its value
    single: list[tuple[str, str]] = field(default_factory=list)  # the same of metrics with one value so far


def title_of(metric: str) -> str:
    """Returns a metric's name in words: `optimizer/grad_scale` is `Optimizer: grad scale`."""
    words = metric.replace("_", " ").replace("/", ": ", 1)
    return words[:1].upper() + words[1:]


def resource_curves(record: Record) -> list[str]:
    """Returns the cards of time and memory over the iterations; none before there are two."""
    charts = Charts([], [])
    for diagnostic in RESOURCES:
        lines = [
            Line(name, series, colour=colour)
            for colour, (metric, name) in zip((1, 3, 2), diagnostic.metrics.items(), strict=False)
            if (series := record.finite(metric)) and len(series.values) > 1
        ]
        if lines:
            charts.cards.append(card(Axes(record.span), diagnostic, lines))
    return charts.cards


def score_curves(record: Record) -> list[str]:
    """Returns the cards of the held-out score, under further samplers too, and of the training reward."""
    cards, axes = [], Axes(record.span)
    lines = [
        Line(name or "held-out score", series, colour=colour)
        for name, colour in zip(["", *record.other_samplers], (1, 3, 4, 5, 6), strict=False)
        if (series := record.finite(f"{held_out(name)}/score"))
    ]
    if lines:
        hint = "Prompts that training never sees; iteration 0 is before training."
        if len(lines) > 1:
            hint += " The other curves are the same prompts under further samplers."
        cards.append(card(axes, Diagnostic("Held-out score", {}, "score", hint), lines))
    reward = _spread_line(record, "reward", "reward", colour=2)
    if reward:
        hint = "Mean over the samples of an iteration" + (
            "; the band is one standard deviation around it." if reward.spread else "."
        )
        cards.append(card(axes, Diagnostic("Training reward", {}, "reward", hint), [reward]))
    return cards


def reward_breakdown(record: Record) -> Charts:
    """Returns a card for each reward: in training with its spread, and held-out where it was evaluated."""
    groups = {"reward", held_out(""), *map(held_out, record.other_samplers)}
    names: dict[str, None] = {}
    for metric in record.metrics:
        group, _, inner = metric.partition("/")
        name, _, last = inner.rpartition("/")
        if group in groups and name and last == "mean":
            names[name] = None
    charts = Charts([], [])
    for name in names:
        lines = [line for line in [_spread_line(record, f"reward/{name}", "training", colour=2)] if line]
        lines += [
            Line(f"held-out, {other}" if other else "held-out", series, colour=colour)
            for other, colour in zip(["", *record.other_samplers], (1, 3, 4, 5, 6), strict=False)
            if (series := record.finite(f"{held_out(other)}/{name}/mean"))
        ]
        if lines:
            add_card(charts, Axes(record.span), Diagnostic(name, {}, "reward", ""), lines)
    return charts


def sample_diagnostics(record: Record) -> list[Diagnostic]:
    """Returns the charts of what samples are like, and of the rewards that go with it: one of each property."""
    means = {metric.split("/")[1]: metric for metric in record.metrics if metric.startswith("samples/")}
    charts = []
    for name, metric in means.items():
        mean = metric if metric.count("/") == 1 else f"samples/{name}/mean"
        charts.append(Diagnostic(title_of(f"samples/{name}"), {mean: name}, "", PROPERTIES.get(name, "")))
        by = {one: one.split("/", 1)[1].rpartition("/")[0] for one in record.metrics if one.startswith("follows/")}
        lines = {one: label for one, label in by.items() if one.endswith(f"/{name}")}
        if lines:  # of a single reward the total is the same line
            shown = {one: label or "all" for one, label in lines.items() if label or len(lines) != 2}
            charts.append(Diagnostic(f"Rewards and {name}", shown, "correlation within groups", FOLLOWED))
    return charts


def diagnostics(record: Record) -> Charts:
    """Returns the known charts that the run has metrics for, then every other metric of loss, optimizer and groups."""
    charts = Charts([], [])
    known = {metric for diagnostic in DIAGNOSTICS for metric in diagnostic.metrics}
    others = [
        Diagnostic(title_of(metric), {metric: metric}, "", "")
        for metric in record.metrics
        if metric.startswith(("loss/", "optimizer/", "groups/")) and metric not in known
    ]
    for diagnostic in (*DIAGNOSTICS, *sample_diagnostics(record), *others):
        present = {metric: name for metric, name in diagnostic.metrics.items() if metric in record.metrics}
        if not present:
            continue
        lines = [
            Line(name, series, colour=colour)
            for colour, (metric, name) in zip((1, 3, 4, 5, 6), present.items(), strict=False)
            if (series := record.finite(metric))
        ]
        broken = sum(record.metrics[metric].num_not_finite for metric in present)
        add_card(charts, Axes(record.span), diagnostic, lines, broken)
    return charts


def add_card(charts: Charts, axes: Axes, chart: Diagnostic, lines: Sequence[Line], num_not_finite: int = 0) -> None:
    """Adds a card where something moves or is broken; else the words of a line."""
    title = chart.title
    if num_not_finite or not all(_is_level(line) for line in lines):
        charts.cards.append(card(axes, chart, lines, num_not_finite))
        return
    values = [_shown(line.series.values[-1], line.series.values) for line in lines]
    if len(set(values)) > 1:
        values = [f"{shown_text(line.name)} {value}" for line, value in zip(lines, values, strict=True)]
    else:
        values = values[:1]
    is_single = all(len(line.series.values) == 1 for line in lines)
    (charts.single if is_single else charts.constant).append((title, ", ".join(values)))


def _is_level(line: Line) -> bool:
    """Returns whether neither the values nor the spread ever differ by more than the rounding of a mean."""
    return all(
        max(series.values) - min(series.values) <= 1e-6 * max(map(abs, series.values))
        for series in (line.series, line.spread)
        if series is not None
    )


def charts_grid(charts: Charts) -> str:
    """Returns a grid of the curves that move, and lists of the metrics that do not or have one value so far."""
    lists = _levels("Never moved", charts.constant) + _levels("One value so far", charts.single)
    return grid("three", charts.cards) + lists


def _levels(title: str, levels: Sequence[tuple[str, str]]) -> str:
    if not levels:
        return ""
    entries = "".join(f"<div><dt>{breakable(name)}</dt><dd>{value}</dd></div>" for name, value in levels)
    return f'<div class="card levels"><h3>{title}</h3><dl>{entries}</dl></div>'


def card(axes: Axes, chart: Diagnostic, lines: Sequence[Line], num_not_finite: int = 0) -> str:
    """Returns a chart with its title, what the values were first and last, and its hint."""
    title, hint = chart.title, chart.hint
    now = [_change(line.series.values) for line in lines]
    legend = "".join(
        f'<span><i class="swatch back-{line.colour}"></i><span class="name">{shown_text(line.name)}</span> '
        f"<b>{change}</b></span>"
        for line, change in zip(lines, now, strict=True)
        if len(lines) > 1
    )
    changes = "; ".join(
        f"{line.name} from {number(line.series.values[0])} to {number(line.series.values[-1])}" for line in lines
    )
    label = f"{title}: {changes}"
    plot = line_chart(lines, chart.unit, axes.iterations, label, axes.others, name=axes.name) if lines else ""
    warning = f'<p class="hint down">{count(num_not_finite)} values were not finite.</p>' if num_not_finite else ""
    return (
        f'<figure class="card"><figcaption><h3>{shown_text(title)}</h3>'
        f'<span class="now">{now[0] if len(lines) == 1 else ""}</span></figcaption>'
        + (f'<div class="legend">{legend}</div>' if legend else "")
        + plot
        + warning
        + (f'<p class="hint">{shown_text(hint)}</p>' if hint else "")
        + "</figure>"
    )


def _change(values: Sequence[float]) -> str:
    first, last = _shown(values[0], values), _shown(values[-1], values)
    return last if len(values) == 1 else f"{first} &rarr; {last}"


def _shown(value: float, values: Sequence[float]) -> str:
    """Returns a value as text: a whole number where all of `values` are whole."""
    return count(value) if all(one.is_integer() for one in values) else number(value)


def _spread_line(record: Record, prefix: str, name: str, colour: int) -> Line | None:
    """Returns the line of `<prefix>/mean` with the band of `<prefix>/std`."""
    mean, std = record.finite(f"{prefix}/mean"), record.finite(f"{prefix}/std")
    if mean is None:
        return None
    if std is None:
        return Line(name, mean, colour=colour)
    at = dict(zip(std.iterations, std.values, strict=True))
    half = type(std.values)("d", (at.get(iteration, 0.0) for iteration in mean.iterations))
    return Line(name, mean, Series(mean.iterations, half), colour)
