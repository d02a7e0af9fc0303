"""The report's page: its sections in the order of reading, as one HTML document that loads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrl.reporting.charts import share_bar
from mmrl.reporting.curves import charts_grid, diagnostics, resource_curves, reward_breakdown, score_curves
from mmrl.reporting.document import Section, grid, loading_nothing
from mmrl.reporting.formatting import count, counted, duration, number, shown_text
from mmrl.reporting.headline import Headline, headline
from mmrl.reporting.overoptimisation import distance_curves
from mmrl.reporting.prompt_groups import GroupRecord, groups_about, groups_table, prompt_histories
from mmrl.reporting.record import Record
from mmrl.reporting.theme import NUM_COLOURS
from mmrl.reporting.trends import opposed

TIME_PARTS = {
    "time/rollout": "sampling: prompts and network calls",
    "time/decode": "latents to pixels, tokens to text",
    "time/score": "rewards",
    "time/environment": "pages and screens that the rollout waited for",
    "time/update": "forward, backward, optimizer step",
    "time/recording": "groups and samples for this page",
}

DISTANCE_ABOUT = "What the policy gains as it leaves the reference (Gao et al. 2022, arXiv 2210.10760)."
OF_REWARDS = "time/reward/"


@dataclass(frozen=True)
class Shown:
    """What a page shows beside the metrics; empty texts where there is nothing."""

    findings: str = ""
    samples_title: str = "Before and after"
    samples_about: str = ""
    samples: str = ""
    rollouts_about: str = ""
    rollouts: str = ""
    groups: GroupRecord = field(default_factory=GroupRecord)


def page(record: Record, shown: Shown) -> str:
    """Returns the whole document of a report."""
    return loading_nothing(record.name, head_of(record), sections_of(record, shown))


def sections_of(record: Record, shown: Shown) -> list[Section]:
    """Returns the sections with something in them, in the order of reading."""
    groups = groups_table(shown.groups) + prompt_histories(shown.groups)
    sections = [
        Section("Findings", "findings", "What the run noticed about itself.", shown.findings),
        Section("Curves", "curves", "", grid("two", score_curves(record))),
        Section(shown.samples_title, "samples", shown.samples_about, shown.samples),
        Section("Training rollouts", "rollouts", shown.rollouts_about, shown.rollouts),
        Section("Best and worst groups", "groups", groups_about(shown.groups), groups),
        Section("Distance from the reference", "distance", DISTANCE_ABOUT, grid("two", distance_curves(record))),
        Section(
            "Rewards",
            "rewards",
            "Each reward by itself; the band is one standard deviation over the samples of an iteration.",
            _warnings(opposed(record)) + charts_grid(reward_breakdown(record)),
        ),
        Section("Diagnostics", "diagnostics", "Is the optimizer healthy?", charts_grid(diagnostics(record))),
        Section("Where the time goes", "time", _time_about(record), _time(record)),
        Section("Time and memory over the run", "resources", "", grid("two", resource_curves(record))),
        Section("Settings", "settings", "", _settings(record.config)),
        Section("Versions", "versions", "", _versions(record)),
    ]
    return [section for section in sections if section.content]


def head_of(record: Record, status: str | None = None) -> str:
    """Returns what a run achieved; `status`: HTML in place of the note that it did not finish."""
    return _header(record, headline(record), status)


def ending(record: Record) -> str:
    """Returns a sentence, as HTML, with the error that ended a run; empty where there was none."""
    return "" if record.failure is None else f" It ended with an error: {shown_text(record.failure.reason)}"


def _warnings(notes: Sequence[str]) -> str:
    return "".join(f'<p class="warning">{note}</p>' for note in notes)


def _header(record: Record, numbers: Headline, status: str | None) -> str:
    stopped = (
        ""
        if numbers.is_finished
        else f'<p class="warning">This run did not finish; the numbers are those it logged.{ending(record)}</p>'
    )
    stopped = stopped if status is None else status
    return (
        f'<header><p class="eyebrow">mmrl training report</p><h1>{shown_text(record.name)}</h1>'
        f'<p class="lead">{_lead(numbers)}</p>{stopped}{_tiles(numbers)}</header>'
    )


def _lead(numbers: Headline) -> str:
    """Returns what a run achieved, in a sentence. A change that chance may have made has no verb."""
    took = "" if numbers.seconds is None else duration(numbers.seconds)
    cost = _cost(numbers)
    if numbers.before is None or numbers.after is None:
        return f"Trained{f' for {took}' if took else ''}: {cost}."
    what = shown_text(numbers.measure[:1].upper() + numbers.measure[1:])
    before = f'<strong class="before">{number(numbers.before)}</strong>'
    after = f"<strong{_mark(numbers)}>{number(numbers.after)}</strong>"
    listed = "; ".join(f"{_words(one.name)}: {number(one.before)} to {number(one.after)}" for one in numbers.others)
    others = f" ({listed})" if listed else ""
    if _is_same(numbers):
        change = f"stayed at {before}{others}{f' in {took} of training' if took else ''}"
    elif not numbers.is_sure:
        change = f"is {after}, was {before}{others}{f', after {took} of training' if took else ''}"
    else:
        verb = "rose" if numbers.after > numbers.before else "fell"
        change = f"{verb} from {before} to {after}{others}{f' in {took} of training' if took else ''}"
    return f"{what} {change}: {cost}."


def _cost(numbers: Headline) -> str:
    """Returns the iterations and the network calls, in words; of a run that did not finish also how many it was for."""
    planned = None if numbers.is_finished else numbers.planned
    if planned is None:
        cost = counted(numbers.iterations, "iteration")
    elif numbers.iterations == 0:
        cost = f"0 of {counted(planned, 'iteration')}"
    else:
        cost = f"iteration {count(numbers.iterations)} of {count(planned)}"
    calls = numbers.network_calls
    return cost if calls is None else f"{cost}, {counted(calls, 'network call')}"


def _tiles(numbers: Headline) -> str:
    tiles = []
    if numbers.before is not None and numbers.after is not None:
        more = [] if numbers.is_sure or _is_same(numbers) else ["the change is within two standard errors"]
        more += [] if numbers.best is None else [f"best {number(numbers.best)}"]
        more += [f"{_words(one.name)} {number(one.before)} &rarr; {number(one.after)}" for one in numbers.others]
        value = f"{number(numbers.before)} <span>&rarr;</span> <b{_mark(numbers)}>{number(numbers.after)}</b>"
        tiles.append(_tile(numbers.measure, value, ", ".join(more), " main"))
    if numbers.seconds is not None:
        tiles.append(_tile("training time", duration(numbers.seconds), "without evaluation"))
    each = f"{duration(numbers.seconds / numbers.iterations)} each" if numbers.seconds and numbers.iterations else ""
    planned = None if numbers.is_finished else numbers.planned
    whole = "" if planned is None else f" <span>of {count(planned)}</span>"
    tiles.append(_tile("iterations", count(numbers.iterations) + whole, each))
    if numbers.network_calls is not None:
        tiles.append(_tile("network calls", count(numbers.network_calls), ""))
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _mark(numbers: Headline) -> str:
    """Returns the mark of a score that fell, or that did not change for sure; empty for one that rose."""
    assert numbers.before is not None and numbers.after is not None, "there is a change"
    if _is_same(numbers) or not numbers.is_sure:
        return ' class="same"'
    return ' class="worse"' if numbers.after < numbers.before else ""


def _is_same(numbers: Headline) -> bool:
    """Whether both ends are the same as they are shown."""
    return number(numbers.before) == number(numbers.after)


def _tile(name: str, value: str, more: str, kind: str = "") -> str:
    note = f'<dd class="more">{more}</dd>' if more else ""
    return f'<div class="card tile{kind}"><dt>{shown_text(name)}</dt><dd class="value">{value}</dd>{note}</div>'


def _words(name: str) -> str:
    return shown_text(name.replace("_", " "))


def _time_about(record: Record) -> str:
    evaluation = record.total("time/evaluation")
    seconds_of_rewards = {
        name.removeprefix(OF_REWARDS): record.total(name) for name in record.metrics if name.startswith(OF_REWARDS)
    }
    each = ", ".join(
        f"{shown_text(name)} {duration(seconds)}" for name, seconds in seconds_of_rewards.items() if seconds
    )
    waited, worked = record.total("time/decoding"), record.total("time/decoding_workers")
    beside = f"; threads worked on them for {duration(worked)} beside the loop" if worked else ""
    acted = record.total("time/environment_workers")
    world = f"Copies of the environment worked for {duration(acted)}, side by side. " if acted else ""
    decoding = f"Rollouts waited {duration(waited)} for prompts to be decoded and encoded{beside}. " if waited else ""
    apart = f"Evaluation took {duration(evaluation)} more, apart from training. " if evaluation else ""
    return (apart + decoding + world) + (
        f"Rewards, which score while other samples are made where there are several chunks: {each}." if each else ""
    )


def _time(record: Record) -> str:
    parts = _time_parts(record)
    total = sum(part.seconds for part in parts)
    if total <= 0:
        return ""
    num_iterations = max(len(record.metrics[name].values) for name in record.metrics if name.startswith("time/"))
    bar = share_bar([(part.seconds / total, part.colour) for part in parts], "share of the training time of each part")
    body = "".join(
        f'<tr><th scope="row"><i class="swatch back-{part.colour}"></i>{shown_text(part.name)}</th>'
        f'<td class="optional">{part.what}</td><td class="right">{100 * part.seconds / total:.1f} %</td>'
        f'<td class="right">{duration(part.seconds)}</td>'
        f'<td class="right">{duration(part.seconds / num_iterations)}</td></tr>'
        for part in parts
    )
    head = (
        '<thead><tr><th>part</th><th class="optional"></th><th class="right">share</th><th class="right">in all</th>'
        '<th class="right">per iteration</th></tr></thead>'
    )
    return f'<div class="card">{bar}<table>{head}<tbody>{body}</tbody></table></div>'


@dataclass(frozen=True)
class _TimePart:
    name: str
    what: str
    seconds: float
    colour: int


def _time_parts(record: Record) -> list[_TimePart]:
    """Returns one part for each colour but the last, which is the rest of the iterations' time."""
    apart = {"time/iteration", "time/evaluation"}
    apart |= {"time/decoding", "time/decoding_workers", "time/environment_workers"}  # inside of the others, or beside
    names = [name for name in TIME_PARTS if name in record.metrics]
    apart |= {name for name in record.metrics if name.startswith(OF_REWARDS)}  # inside of the others
    names += [name for name in record.metrics if name.startswith("time/") and name not in apart | TIME_PARTS.keys()]
    seconds = {name: record.total(name) or 0.0 for name in names}
    if "time/environment" in seconds and "time/rollout" in seconds:  # which is inside of it
        seconds["time/rollout"] = max(0.0, seconds["time/rollout"] - seconds["time/environment"])
    parts = [
        _TimePart(name.removeprefix("time/"), TIME_PARTS.get(name, ""), seconds[name], colour)
        for colour, name in zip(range(1, NUM_COLOURS), names, strict=False)
    ]
    whole = max(record.total("time/iteration") or 0.0, sum(seconds.values()))
    rest = whole - sum(part.seconds for part in parts)
    if rest > 1e-3 * whole:
        parts.append(_TimePart("other", "between the parts", rest, NUM_COLOURS))
    return parts


def _settings(config: str | None) -> str:
    if config is None:
        return ""
    return f"<details><summary>config.yaml, as it was resolved</summary><pre>{shown_text(config)}</pre></details>"


def _versions(record: Record) -> str:
    versions = record.summary.get("versions")
    if not isinstance(versions, dict) or not versions:
        return ""
    entries = "".join(
        f"<div><dt>{shown_text(str(name))}</dt><dd>{shown_text(str(version))}</dd></div>"
        for name, version in versions.items()
    )
    return f'<dl class="card versions">{entries}</dl>'
