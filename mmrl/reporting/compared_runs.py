"""Several runs beside each other: their names, their headline numbers, and the settings in which they differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from mmrl.core.config import label_of
from mmrl.reporting.findings import Finding, in_order, read_findings
from mmrl.reporting.headline import Headline, headline
from mmrl.reporting.record import Record, parsed_settings, read_record
from mmrl.reporting.theme import NUM_COLOURS
from mmrl.system.errors import ConfigError

FEWEST, MOST = 2, NUM_COLOURS  # runs of one comparison: a colour for each
MISSING = object()  # the value of a setting that a run does not have


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs."""

    folder: Path
    label: str  # its name, with as much of its path as makes it unlike the others
    colour: int  # of the palette, from 1
    record: Record
    numbers: Headline
    settings: Mapping[str, Any] | None  # `a.b` -> value; None: the run has no config.yaml that can be read
    findings: Sequence[Finding]  # of the doctor, without notes, in the order of reading

    def cost(self, prefix: str) -> dict[int, float] | None:
        """Returns the sum of the metrics that begin with `prefix` up to each iteration; None where there are none."""
        spent: dict[int, float] = {}
        for name in self.record.metrics:
            series = self.record.finite(name) if name.startswith(prefix) else None
            for iteration, value in zip(series.iterations, series.values, strict=True) if series else ():
                spent[int(iteration)] = spent.get(int(iteration), 0.0) + value
        order = sorted(spent)
        return dict(zip(order, accumulate(spent[one] for one in order), strict=True)) if order else None


def read_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """Returns the runs in the order in which they were given.

    Raises ConfigError for fewer than two runs or more than eight, for a run that was given twice, and for what
    `read_record` refuses.
    """
    if not FEWEST <= len(folders) <= MOST:
        raise ConfigError(f"compare takes {FEWEST} to {MOST} run directories, got {len(folders)}")
    paths = [folder.resolve() for folder in folders]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise ConfigError(f"the run {path} was given twice; compare takes different runs")
    records = [read_record(folder) for folder in folders]
    return [
        ComparedRun(path, label, colour, record, headline(record), settings_of(record.config), _findings(path))
        for colour, (path, label, record) in enumerate(zip(paths, labels(paths), records, strict=True), start=1)
    ]


def _findings(run: Path) -> list[Finding]:
    return in_order(one for one in read_findings(run) if one.severity != "note")


def labels(paths: Sequence[Path]) -> list[str]:
    """Returns for each path its last part, with as many parts before it as make it unlike the others.

    `paths` are absolute and differ. A lone name stays alone: `a/run`, `b/run`, `c/other` are `a/run`, `b/run`, `other`.
    """

    def ending(path: Path, length: int) -> tuple[str, ...]:
        return path.parts[-length:]

    shown = []
    for path in paths:
        others = [other for other in paths if other != path]
        length = 1
        while length < len(path.parts) and any(ending(other, length) == ending(path, length) for other in others):
            length += 1
        shown.append("/".join(part.strip("/") for part in ending(path, length)).strip("/") or "/")
    return shown


def settings_of(config: str | None) -> dict[str, Any] | None:
    """Returns the settings of a config.yaml by flat names; None where it is missing or no YAML mapping."""
    settings = parsed_settings(config)
    return None if settings is None else flattened(settings)


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns settings by flat names: `loss.name`; of a list of rewards `rewards.LABEL.weight`.

    Sections of a list are named by their labels where these differ, else by their numbers from 0. A list of plain
    values is one value, and so is an empty section.
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        inner: Any = value
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            inner = dict(zip(_names(value), value, strict=True))
        if isinstance(inner, dict) and inner:
            flat |= flattened(inner, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = inner
    return flat


def _names(sections: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [str(label_of(one)) if "name" in one else "" for one in sections]
    if "" in names or len(set(names)) < len(names):
        return [str(number) for number in range(len(sections))]
    return names


def differences(runs: Sequence[ComparedRun]) -> dict[str, list[Any]]:
    """Returns the settings in which runs differ, each with its value in every run that has settings, in their order.

    A run without the setting has the value MISSING there.
    """
    configured = [run.settings for run in runs if run.settings is not None]
    names = dict.fromkeys(name for settings in configured for name in settings)
    values = {name: [settings.get(name, MISSING) for settings in configured] for name in names}
    return {name: row for name, row in values.items() if any(_text(one) != _text(row[0]) for one in row)}


def _text(value: Any) -> str:
    """Returns a value as text, by which 1 and 1.0 are equal, true and 1 are not, and no value is like an empty one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(float(value)) if abs(value) < 2**53 else repr(value)
    is_empty = value is MISSING or value is None or value == {} or value == []
    return "" if is_empty else json.dumps(value, default=str)


def shown_value(value: Any) -> str:
    """Returns the value of a setting as people write it in YAML; nothing for a setting that a run does not have."""
    if value is MISSING:
        return ""
    return value if isinstance(value, str) and value else json.dumps(value, default=str, ensure_ascii=False)


def as_json(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Returns numbers, findings and differences of settings for programs: `runs` in order, `settings` by flat names.

    A setting has the values of the runs that have it, by the labels of these runs.
    """
    configured = [run.label for run in runs if run.settings is not None]
    return {
        "runs": [
            {
                "run": run.label,
                "folder": str(run.folder),
                **asdict(run.numbers),
                "findings": [
                    {"name": one.name, "severity": one.severity, "iteration": one.iteration} for one in run.findings
                ],
            }
            for run in runs
        ],
        "settings": {
            name: {label: _plain(value) for label, value in zip(configured, row, strict=True) if value is not MISSING}
            for name, row in differences(runs).items()
        },
        "without_settings": [run.label for run in runs if run.settings is None],
    }


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
