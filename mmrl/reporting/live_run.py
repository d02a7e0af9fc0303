"""A run that still trains, as a page shows it: only what was appended is read, and rendering has a budget of time."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any

from mmrl.reporting.document import links_to
from mmrl.reporting.findings import Finding, findings_list, findings_of
from mmrl.reporting.formatting import duration, shown_text
from mmrl.reporting.headline import seconds_left
from mmrl.reporting.page import Shown, ending, head_of, sections_of
from mmrl.reporting.prompt_groups import GroupRecord
from mmrl.reporting.record import FAILURE, Record, Series, add_line, read_record_of
from mmrl.reporting.sample_cards import Served, group_cards, over_time, sample_cards, some_of
from mmrl.reporting.samples import read_snapshot, saved_iterations
from mmrl.system.errors import ConfigError

KINDS = ("samples", "rollouts")
LOGS = ("metrics.jsonl", "groups.jsonl", "findings.jsonl")
SHARE = 0.01  # of one core, that rendering takes at most
SHORTEST = 1.0  # seconds between two renderings


@dataclass
class Tail:
    """The lines of a log that were appended since the last look; all again where the log was replaced or cut."""

    path: Path
    _file: tuple[int, int] = (0, 0)
    _place: int = 0

    def read(self) -> tuple[bool, list[bytes]]:
        """Returns whether the log begins anew, and its new whole lines; a last line without its end waits."""
        try:
            with self.path.open("rb") as log:
                about = self.path.stat()
                is_new = (about.st_dev, about.st_ino) != self._file or about.st_size < self._place
                self._file = (about.st_dev, about.st_ino)
                self._place = 0 if is_new else self._place
                log.seek(self._place)
                content = log.read()
        except OSError:
            is_new, self._file, self._place = self._place > 0, (0, 0), 0
            return is_new, []
        whole = content[: content.rfind(b"\n") + 1]
        self._place += len(whole)
        return is_new, whole.splitlines()


@dataclass
class LiveRun:
    """The parts of the page of a run, rendered where something changed and the budget allows it."""

    run: Path
    is_training: Callable[[], bool]  # whether a process trains in the run directory now
    version: str = ""
    parts: dict[str, str] = field(default_factory=dict)  # HTML by the name of the part
    _tails: dict[str, Tail] = field(init=False)
    _metrics: dict[str, Series] = field(default_factory=dict)
    _groups: GroupRecord = field(default_factory=GroupRecord)
    _findings: list[Finding] = field(default_factory=list)
    _trains: bool = False  # at the last look
    _stamp: object = None
    _not_before: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._tails = {name: Tail(self.run / name) for name in LOGS}

    def look(self) -> tuple[str, dict[str, str]]:
        """Returns the version of the page and its parts, which are rendered again where files changed."""
        with self._lock:
            self._trains = self.is_training()
            now, stamp = time.monotonic(), self._seen()
            if stamp != self._stamp and now >= self._not_before:
                started = time.thread_time()
                self._render()
                spent = time.thread_time() - started
                self._stamp, self._not_before = stamp, now + max(SHORTEST, spent / SHARE)
            return self.version, self.parts

    def samples(self, kind: str, chosen: str) -> str:
        """Returns the samples of an iteration, or with `all` those of all iterations over time; "" where none are."""
        saved, media = saved_iterations(self.run, kind), Served(self.run)
        if chosen == "all":
            some = some_of(list(saved))
            return over_time([read_snapshot(iteration, saved[iteration]) for iteration in some], media)
        if not chosen.isdecimal() or (iteration := int(chosen)) not in saved:
            return ""
        snapshot = read_snapshot(iteration, saved[iteration])
        return group_cards(snapshot, media) if kind == "rollouts" else sample_cards(snapshot, media)

    def _seen(self) -> object:
        """Returns what changes where the run writes anything that the page shows; reads no file."""
        return (*map(_stamp_of, self._files()), self._trains)

    def _files(self) -> Iterator[Path]:
        yield from (self.run / name for name in (*LOGS, "summary.json", FAILURE, "config.yaml"))
        for kind in KINDS:
            folders = (path for path in (self.run / kind).glob("*") if path.name.isdecimal())
            newest = max(folders, key=lambda path: int(path.name), default=self.run / kind)
            yield from (self.run / kind, newest, newest / "samples.json")

    def _render(self) -> None:
        try:
            self._read()
            self.parts = self._rendered()
        except ConfigError as error:
            self.parts = {**self.parts, "notice": f'<p class="warning">{shown_text(str(error))}</p>'}
        self.version = blake2b(json.dumps(self.parts).encode(), digest_size=8).hexdigest()

    def _read(self) -> None:
        for name, tail in self._tails.items():
            is_new, lines = tail.read()
            if name == "metrics.jsonl":
                self._metrics = {} if is_new else self._metrics
                for line in lines:
                    if line.strip():
                        add_line(self._metrics, tail.path, line)
            elif name == "groups.jsonl":
                self._groups = GroupRecord() if is_new else self._groups
                self._groups.add(lines)
            else:
                self._findings = ([] if is_new else self._findings) + findings_of(lines)

    def _rendered(self) -> dict[str, str]:
        if not self._metrics:
            words = "The run has logged nothing yet. This page waits for its first iteration."
            name = shown_text(self.run.resolve().name)
            title = f'<p class="eyebrow">mmrl training report</p><h1>{name}</h1>'
            head = f'<header>{title}<p class="lead">{words}</p></header>'
            return {"notice": "", "head": head, "findings": findings_list(self._findings)}
        record = read_record_of(self.run, self._metrics)
        shown = Shown(
            findings=findings_list(self._findings),
            samples_title="Samples over time",
            samples_about="Held-out prompts, always the same ones and the same noise.",
            samples=self._chooser("samples"),
            rollouts_about="Samples of the best, the worst and the widest group of an iteration, by their totals.",
            rollouts=self._chooser("rollouts"),
            groups=self._groups,
        )
        sections = sections_of(record, shown)
        head = head_of(self._without_former_end(record), self._status(record))
        parts = {"notice": "", "head": head + links_to(sections)}
        return parts | {section.anchor: section.html() for section in sections}

    def _without_former_end(self, record: Record) -> Record:
        """Returns the record of a run that trains without the summary of where it was stopped before."""
        return replace(record, summary={}) if record.summary and self._trains else record

    def _status(self, record: Record) -> str:
        if record.summary.get("is_complete") is True and not self._trains:
            return '<p class="status">Finished.</p>'
        if self._trains:
            left = seconds_left(record)
            about = f", about {duration(left)} of training left" if left else ""
            return f'<p class="status live">Training now{about}; this page follows.</p>'
        return f'<p class="warning">No process trains in this run directory now.{ending(record)}</p>'

    def _chooser(self, kind: str) -> str:
        """Returns the choice of an iteration, and the place of its samples; empty where none were saved."""
        saved = list(saved_iterations(self.run, kind))
        if not saved:
            return ""
        options = "".join(
            f'<option value="{iteration}">iteration {iteration}</option>' for iteration in reversed(saved)
        )
        every = '<option value="all">all, side by side</option>' if kind == "samples" and len(saved) > 1 else ""
        stamp = _stamp_of(self.run / kind / f"{saved[-1]:06d}" / "samples.json")
        return (
            f'<p class="chooser"><button type="button" data-step="1" aria-label="earlier">&larr;</button>'
            f'<select data-kind="{kind}" data-newest="{saved[-1]}" aria-label="iteration of {kind}">'
            f'<option value="newest">newest: iteration {saved[-1]}</option>{every}{options}</select>'
            f'<button type="button" data-step="-1" aria-label="later">&rarr;</button></p>'
            f'<div class="chosen" data-of="{kind}" data-stamp="{stamp}"></div>'
        )


def _stamp_of(path: Path) -> Any:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
