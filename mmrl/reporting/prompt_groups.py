"""The groups of a run for people: the newest ones from the best to the worst, and the history of each prompt."""

import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl.reporting.formatting import breakable, number, shown_text
from mmrl.reporting.group_log import Group
from mmrl.reporting.record import read_bytes
from mmrl.reporting.samples import PLACES

ENDS = 5  # groups shown at each end
MAX_PROMPTS = 200
SPARK = (120, 28)  # pixels of a small curve


@dataclass
class History:
    """The mean total of one prompt's groups in each iteration that sampled it."""

    text: str
    iterations: "array[int]" = field(default_factory=lambda: array("q"))
    means: "array[float]" = field(default_factory=lambda: array("d"))


@dataclass
class GroupRecord:
    """The groups of a run as they are read: all of the newest iteration, of each prompt its means."""

    iteration: int = 0
    newest: list[Group] = field(default_factory=list)
    prompts: dict[str, History] = field(default_factory=dict)

    def add(self, lines: Iterable[bytes]) -> None:
        """Adds whole lines of groups.jsonl; lines that are none are left out."""
        for line in lines:
            try:
                entry: Any = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(entry, dict) or not isinstance(entry.get("iteration"), int):
                continue
            groups = entry.get("groups")
            listed = [group for one in groups if (group := _group(one))] if isinstance(groups, list) else []
            self.iteration, self.newest = entry["iteration"], listed
            means: dict[str, list[float]] = {}  # of a prompt that has several groups in one iteration
            for group in listed:
                self.prompts.setdefault(group.name, History(group.text))
                if group.mean is not None:
                    means.setdefault(group.name, []).append(group.mean)
            for name, own in means.items():
                self.prompts[name].iterations.append(entry["iteration"])
                self.prompts[name].means.append(sum(own) / len(own))


def read_groups(run: Path) -> GroupRecord:
    """Returns the groups of a run; an empty record where it has none."""
    record, file = GroupRecord(), run / "groups.jsonl"
    if file.is_file():
        record.add(read_bytes(file).splitlines())
    return record


def _group(entry: Any) -> Group | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), int):
        return None
    rewards, size = entry.get("rewards"), entry.get("size")
    return Group(
        prompt=entry["prompt"],
        name=str(entry.get("name", "")),
        text=str(entry.get("text", "")),
        size=size if isinstance(size, int) else 0,
        mean=_number(entry.get("mean")),
        std=_number(entry.get("std")),
        rewards={str(name): _number(value) for name, value in rewards.items()} if isinstance(rewards, dict) else {},
        is_degenerate=entry.get("degenerate") is True,
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def groups_about(record: GroupRecord) -> str:
    """Returns a sentence on the groups that are shown."""
    if not record.newest:
        return ""
    count = len(record.newest)
    flat = sum(group.is_degenerate for group in record.newest)
    failed = sum(group.mean is None for group in record.newest)
    left_out = f" {failed} more could not be judged." if failed else ""
    if count - failed == 1:
        taught = " It teaches nothing: its samples all score alike." if flat else ""
        return f"The one group of iteration {record.iteration}.{left_out}{taught}"
    which = "All" if flat == count else str(flat)
    taught = f" {which} of them teach nothing: their samples all score alike." if flat else ""
    return f"The {count - failed} groups of iteration {record.iteration}, from the best to the worst.{left_out}{taught}"


def groups_table(record: GroupRecord) -> str:
    """Returns the best and the worst groups of the newest iteration, the others folded; empty where there are none."""
    judged = [group for group in record.newest if group.mean is not None]
    ordered = sorted(judged, key=lambda group: group.mean or 0.0, reverse=True)
    if not ordered:
        return ""
    best, worst, widest = ordered[0], ordered[-1], max(ordered, key=lambda group: group.std or 0.0)
    marks = {id(best): ["best"], id(worst): ["worst"]} if best.mean != worst.mean else {}
    if widest.std:
        marks.setdefault(id(widest), []).append("widest")
    names = [name for name in ordered[0].rewards if len(ordered[0].rewards) > 1]
    rows = [_row(group, marks.get(id(group), []), names) for group in ordered]
    head = "".join(f'<th class="right optional">{breakable(name)}</th>' for name in names)
    head = f'<thead><tr><th>prompt</th><th class="right">mean</th><th class="right">spread</th>{head}</tr></thead>'
    if len(rows) <= 2 * ENDS + 2:
        return f'<div class="card wide-table"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'
    top, between, bottom = rows[:ENDS], rows[ENDS:-ENDS], rows[-ENDS:]
    return (
        f'<div class="card wide-table"><table>{head}<tbody>{"".join(top)}</tbody></table></div>'
        f'<details data-name="groups-between"><summary>{len(between)} groups between</summary>'
        f'<div class="inside wide-table"><table>{head}<tbody>{"".join(between)}</tbody></table></div></details>'
        f'<div class="card wide-table"><table>{head}<tbody>{"".join(bottom)}</tbody></table></div>'
    )


def _row(group: Group, marks: list[str], names: list[str]) -> str:
    words = [mark for mark in PLACES if mark in marks] + (["no spread"] if group.is_degenerate else [])
    badges = "".join(f' <span class="badge place">{word}</span>' for word in words)
    rewards = "".join(f'<td class="right optional">{number(group.rewards.get(name))}</td>' for name in names)
    return (
        f'<tr><td class="prompt-cell"><bdi>{shown_text(group.text)}</bdi>{badges}</td>'
        f'<td class="right">{number(group.mean)}</td><td class="right">{number(group.std)}</td>{rewards}</tr>'
    )


def prompt_histories(record: GroupRecord) -> str:
    """Returns a sentence, and of each prompt that was sampled in several iterations a small curve; or nothing."""
    seen = [history for history in record.prompts.values() if len(history.means) > 1]
    if not seen:
        return ""
    seen.sort(key=lambda history: history.means[-1])
    span = (min(min(one.means) for one in seen), max(max(one.means) for one in seen))
    last = max(one.iterations[-1] for one in seen)
    rows = "".join(_history_row(history, span, last) for history in seen[:MAX_PROMPTS])
    head = (
        '<thead><tr><th>prompt</th><th class="right optional">iterations</th><th>over the run</th>'
        '<th class="right">first</th><th class="right">last</th></tr></thead>'
    )
    shown, total = min(len(seen), MAX_PROMPTS), len(record.prompts)
    cut = f" The {shown} hardest ones are shown." if shown < len(seen) else ""
    some = f"{len(seen)} of {total} prompts were" if total > 1 else "The one prompt was"
    return (
        f'<p class="about after">{some} sampled in more than one iteration. The mean total of each, from the prompt '
        f"that is now the hardest.{cut}</p>"
        '<details data-name="prompts"><summary>The history of '
        f'{"one prompt" if shown == 1 else f"{shown} prompts"}</summary><div class="inside wide-table">'
        f"<table>{head}<tbody>{rows}</tbody></table></div></details>"
    )


def _history_row(history: History, span: tuple[float, float], last: int) -> str:
    first, now = history.means[0], history.means[-1]
    way = "" if number(first) == number(now) else " up" if now > first else " down"
    return (
        f'<tr><td class="prompt-cell"><bdi>{shown_text(history.text)}</bdi></td>'
        f'<td class="right optional">{len(history.means)}</td><td>{_spark(history, span, last)}</td>'
        f'<td class="right">{number(first)}</td><td class="right{way}">{number(now)}</td></tr>'
    )


def _spark(history: History, span: tuple[float, float], last: int) -> str:
    """Returns a curve of the means over all iterations; all prompts' curves have the same scales."""
    (width, height), (low, high) = SPARK, span
    reach = high - low or 1.0
    points = [
        (2 + (width - 4) * iteration / max(1, last), height - 2 - (height - 4) * (mean - low) / reach)
        for iteration, mean in zip(history.iterations, history.means, strict=True)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="mean totals: {number(history.means[0])} to {number(history.means[-1])}">'
        f'<polyline points="{line}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2.2"/></svg>'
    )
