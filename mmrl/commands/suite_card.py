"""The card of a suite: what was tested by what, and the number with its interval, for people as markdown."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.core.suites import NumberSettings, SuiteSettings
from mmrl.reporting.formatting import duration
from mmrl.run_directory.suite_results import SampleResult
from mmrl.scoring.suite_numbers import LEVEL, Estimate, SampleScore, estimate, estimates_by_kind
from mmrl.system.files import replace_file
from mmrl.system.progress_bars import Screen
from mmrl.system.terminal import printable


def numbers_of(
    suite: SuiteSettings, results: Sequence[SampleResult], kinds: Mapping[str, Mapping[int, str]]
) -> dict[str, Any]:
    """Returns the numbers of a suite for its card: `number`, `interval`, `kinds` and those of `also`.

    `kinds`: of each field that holds kinds, the kind of each prompt.
    """
    found = _number(suite.number, results, kinds, suite.seed)
    also = {name: _number(one, results, kinds, suite.seed) for name, one in suite.also.items()}
    names = list(results[0].scores) if results else []
    plain = NumberSettings()
    means = {
        name: _number(plain.model_copy(update={"of": name}), results, kinds, suite.seed)["number"] for name in names
    }
    return {**found, "also": also, "scores": means}


def _number(
    settings: NumberSettings,
    results: Sequence[SampleResult],
    kinds: Mapping[str, Mapping[int, str]],
    seed: int,
) -> dict[str, Any]:
    of_kind = {} if settings.by is None else kinds[settings.by]
    scores = [_sample(settings, row, of_kind.get(row.prompt, "")) for row in results]
    factor = 100.0 if settings.unit == "percent" else 1.0
    whole = estimate(scores, settings.how, settings.at, seed=seed)
    each = {} if settings.by is None else estimates_by_kind(scores, settings.how, settings.at, seed=seed)
    made = _entry(whole, factor) | {"unit": settings.unit, "how": settings.how, "of": settings.of, "at": settings.at}
    made |= {} if settings.over is None else {"over": settings.over}
    return made | {"by": settings.by, "kinds": {kind: _entry(one, factor) for kind, one in each.items()}}


def _sample(settings: NumberSettings, row: SampleResult, kind: str) -> SampleScore:
    value = row.score(settings.of)
    is_out = (settings.only and kind not in settings.only) or (
        settings.least is not None and value is not None and value < settings.least
    )
    if is_out:
        return SampleScore(row.prompt, None, kind)
    if settings.over is None:
        return SampleScore(row.prompt, value, kind)
    below = row.score(settings.over)
    return SampleScore(row.prompt, None if below is None else value, kind, below or 0.0)


def _entry(found: Estimate | None, factor: float) -> dict[str, Any]:
    if found is None:
        return {"number": None, "interval": None, "prompts": 0, "samples": 0}
    interval = [found.low * factor, found.high * factor]
    return {
        "number": found.number * factor,
        "interval": interval,
        "prompts": found.prompts,
        "samples": found.samples,
    }


def write(card: Mapping[str, Any], folder: Path) -> None:
    """Writes `card.json` and `card.md`."""
    replace_file(folder / "card.json", (json.dumps(card, indent=2) + "\n").encode())
    replace_file(folder / "card.md", markdown(card).encode())


def shown(cards: Sequence[Mapping[str, Any]]) -> None:
    """Prints cards on stdout: laid out on a terminal, elsewhere as markdown."""
    screen, text = Screen(), printable("\n".join(map(markdown, cards)))
    if not screen.is_terminal:
        print(text)
        return
    from rich.markdown import Markdown

    screen.print(Markdown(text, hyperlinks=False))


def markdown(card: Mapping[str, Any]) -> str:
    """Returns the card as markdown."""
    lines = [f"# {_plain(card['title'])}", ""]
    lines += [f"**{_value(card)}**, {_interval(card)}", ""]
    lines += [f"> {_plain(remark)}\n" for remark in card["remarks"]]
    weights = card["weights"]
    facts = {
        "Tested": f"{_plain(card['config'])}, {_plain(weights['of'])}",
        "Weights (SHA-256)": weights["sha256"] or "of the untrained model",
        "Suite": f"{_plain(card['suite'])}, SHA-256 {card['suite_sha256']}",
        "Published by": _plain(card["source"]),
        "Data": f"{_plain(', '.join(card['data']))}, {card['prompts_tested']} of {card['prompts_there']} prompts, "
        f"{card['samples_per_prompt']} sample{'s' if card['samples_per_prompt'] > 1 else ''} each",
        "Sampler": f"`{json.dumps(card['sampler'])}`",
        "Judges": f"`{json.dumps(card['rewards'])}`",
        "Not judged": f"{card['failures']} samples",
        "Time": _time(card),
        "Versions": ", ".join(f"{name} {version}" for name, version in card["versions"].items()),
    }
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items()), ""]
    if card["kinds"]:
        lines += _table(f"By {_plain(card['by'])}", card["kinds"])
    if card["also"]:
        lines += _table("Further numbers", card["also"])
    if len(card["scores"]) > 1:
        lines += ["## Means of the rewards", "", "| reward | mean |", "|---|---|"]
        lines += [f"| {_plain(name)} | {_digits(mean)} |" for name, mean in card["scores"].items()] + [""]
    if card["published"]:
        lines += ["## Published numbers", "", "| model | number | source |", "|---|---|---|"]
        lines += [
            f"| {_plain(one['model'])} | {_digits(one['number'])} | {_plain(one['source'])} |"
            for one in card["published"]
        ] + [""]
    return "\n".join(lines + ([_plain(card["note"]), ""] if card["note"] else []))


def _time(card: Mapping[str, Any]) -> str:
    """Returns the time of the command in words, and of how many prompts it is where others were there already."""
    now, tested = card["prompts_of_this_start"], card["prompts_tested"]
    of = f" for {now} of the {tested} prompts; the others were there" if now < tested else ""
    return f"{duration(card['seconds'])} in {card['processes']} process{'es' if card['processes'] > 1 else ''}{of}"


def _table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    table = [f"## {title}", "", f"| | number | {LEVEL:.0%} interval | prompts |", "|---|---|---|---|"]
    for name, row in rows.items():
        ends = "" if row["interval"] is None else " to ".join(map(_digits, row["interval"]))
        table.append(f"| {_plain(name)} | {_digits(row['number'])} | {ends} | {row['prompts']} |")
    return [*table, ""]


def _value(card: Mapping[str, Any]) -> str:
    return f"{_digits(card['number'])}{' %' if card['unit'] == 'percent' else ''}"


def _interval(card: Mapping[str, Any]) -> str:
    if card["interval"] is None:
        judged = card["prompts_tested"] * card["samples_per_prompt"] - card["failures"]
        return "no sample that was judged counts" if judged > 0 else "no sample could be judged"
    low, high = map(_digits, card["interval"])
    return f"{LEVEL:.0%} interval {low} to {high} (bootstrap over {card['prompts']} prompts)"


def _digits(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _plain(text: str) -> str:
    """Returns a text of data as one line that is no markup of markdown or HTML."""
    line = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "\\`*_[]|#":
        line = line.replace(mark, f"\\{mark}")
    return line
