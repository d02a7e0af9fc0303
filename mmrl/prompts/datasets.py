"""Prompts with images from files, folders and the hub: layouts by name, bad rows by file and line."""

import gc
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from mmrl.core.config import DatasetSettings
from mmrl.core.data import Prompt
from mmrl.core.keys import generator
from mmrl.core.reward_batches import Demands
from mmrl.core.templates import template_text
from mmrl.media.header_index import HeaderIndex
from mmrl.media.pictures import Role, StoredPicture
from mmrl.media.video import FrameSampling, StoredClip
from mmrl.plans.offline import OFFLINE
from mmrl.prompts import synthetic_rows
from mmrl.prompts.inversion import inverted
from mmrl.prompts.layout import JoinedLayout, Layout, PartsLayout, find, names
from mmrl.prompts.row import Row, check_marks, without_none
from mmrl.prompts.row_files import FILES, HUB_NAME, RawRow, Source, parsed, rows_with_progress
from mmrl.prompts.row_pictures import BadRow, PictureFolder
from mmrl.system.errors import ConfigError, shortened
from mmrl.system.spelling import did_you_mean, nearest

CHECKED = 1000  # images and videos whose headers are read with the rows, unless `headers` says otherwise
LISTED = 10  # skipped rows that are named one by one
TINY_ROWS = 8
SLOT = re.compile(r"\{prompt\}|\{row\.(\w+)\}")  # of a template
TRUTH = ("box", "boxes", "labels", "point", "answer", "action", "input_text", "span")  # never put into a prompt

log = logging.getLogger(__name__)


def layout_names() -> list[str]:
    """Returns the names of the layouts."""
    return names()


def load_dataset_prompts(settings: DatasetSettings, needed: Demands | None = None) -> tuple[Prompt, ...]:
    """Returns the prompts of a data set.

    Of images and videos only headers are read, as `headers` says; with `decode` whole images, and the first and last
    frame of videos. That a file is there is known by a listing of its folder.

    Args:
        needed: what rewards need in the target of every row; a row without it is a bad row.
    Raises:
        ConfigError: an unknown layout, missing files, no rows, or (`bad_rows: fail`) the first bad row, by file and
            line. With `bad_rows: skip` bad rows are named in the log and counted at the end.
    """
    layout = find(settings.layout)
    _check_columns(settings, layout)
    reader = _Reader(settings, layout, needed or Demands())
    rows = rows_with_progress(_chosen(settings, layout), ", ".join(_paths(settings)))
    with _without_collector():
        prompts = [prompt for raw in rows if (prompt := reader.read(raw)) is not None]
    for folder in reader.folders.values():
        folder.index.save()
    reader.report(len(prompts))
    if not prompts:
        bad = f"; all of {len(reader.skipped)} rows are bad, the first: {reader.skipped[0]}" if reader.skipped else ""
        raise ConfigError(f"prompts: {', '.join(_paths(settings))} holds no prompt{bad}")
    return tuple(prompts)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Leaves out the collector of cycles, which would walk over all rows that were read again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def raw_rows(settings: DatasetSettings) -> Iterator[RawRow]:
    """Returns the rows of a data set as its files have them, in the order of its prompts, each with its place.

    A prompt's `source` is the place of its row. Raises ConfigError for a layout whose prompts are no single rows of a
    file, and as `load_dataset_prompts` does for files.
    """
    layout = find(settings.layout)
    if isinstance(layout, PartsLayout | JoinedLayout):
        raise ConfigError(f"prompts: layout {settings.layout!r} makes prompts of more or less than a row of a file")
    return _chosen(settings, layout)


def read_json(text: str) -> Any:
    """Returns the value of one line of JSON. Raises ConfigError; its message continues the name of the line."""
    try:
        value = parsed(text)
        without_none(value)
        json.dumps(value, allow_nan=False)
    except json.JSONDecodeError as error:
        raise ConfigError(f"is not JSON: {error.msg} at character {error.colno}") from error
    except (ValueError, RecursionError) as error:  # BadRow; a number of 5,000 digits; NaN, which no JSON has
        raise ConfigError(f"cannot be read: {error}") from error
    return value


def fault_of(prompt: Prompt) -> str | None:
    """Returns what is wrong with a prompt of a plain file, in words; None where nothing is."""
    try:
        check_marks(prompt)
    except BadRow as error:
        return str(error)
    return None


def write_synthetic(layout: str, folder: Path, rows: int, seed: int) -> DatasetSettings:
    """Writes small random tasks in exactly this layout; returns the settings that load them.

    The ground truth lies inside its image. Raises ConfigError for an unknown layout.
    """
    return stand_in(DatasetSettings(path="none", layout=layout), folder, seed, rows)


def is_here(settings: DatasetSettings) -> bool:
    """Returns whether all files and folders of a data set are on this machine."""
    return all(Source(path).is_here for path in _paths(settings))


def missing_files(settings: DatasetSettings) -> list[str]:
    """Returns the files and folders of a data set that are not on this machine; names of the hub are not looked up."""
    paths = [path for path in _paths(settings) if Path(path).suffix.lower() in FILES or not HUB_NAME.fullmatch(path)]
    return [path for path in paths if not Source(path).is_here]


def stand_in(
    settings: DatasetSettings, folder: Path, seed: int, rows: int = TINY_ROWS, *, roles: Sequence[Role] = ("image",)
) -> DatasetSettings:
    """Writes synthetic rows of the same layout into `folder`; returns the settings that load them.

    `roles`: of the images of a row, where the layout leaves them open.
    """
    path = synthetic_rows.write(settings.layout, folder, rows, seed, settings.columns, roles=roles)
    changes = {"path": str(path), "images": str(folder / "images"), "cache": str(folder / "cache")}
    return settings.model_copy(update=changes | {"subset": None, "split": None, "limit": None})


def shrunk(settings: DatasetSettings) -> DatasetSettings:
    """Returns the same settings for the first rows only."""
    return settings.model_copy(update={"limit": min(settings.limit or TINY_ROWS, TINY_ROWS), "seed": None})


@dataclass
class _Reader:
    """The reader of a data set: from raw rows to prompts, with a list of the rows that were skipped."""

    settings: DatasetSettings
    layout: Layout
    needed: Demands
    skipped: list[str] = field(default_factory=list)
    folders: dict[Path | None, PictureFolder] = field(default_factory=dict)
    num_inverted: int = 0  # questions that are asked the other way round

    def read(self, raw: RawRow) -> Prompt | None:
        """Returns the prompt of a row; None for a bad row that is skipped. Raises ConfigError for another bad row."""
        try:
            if raw.fault is not None:
                raise BadRow(raw.fault)
            prompt = self._changed(self._inverted(self._prompt(raw)))
            check_marks(prompt)
            self._check_target(prompt, raw)
            if self.settings.decode:
                _decode(prompt)
            return prompt
        except BadRow as error:
            if self.settings.bad_rows == "fail":
                raise ConfigError(f"prompts: {raw.place}: {error}") from error
            self.skipped.append(shortened(f"{raw.place}: {error}"))
            if len(self.skipped) <= LISTED:
                log.warning("prompts: skipped %s", self.skipped[-1])
            return None

    def _prompt(self, raw: RawRow) -> Prompt:
        try:
            row = Row(self._own_names(raw.values), self._folder(raw), self.settings.columns, raw.place)
            return self.layout.prompt(row)
        except ConfigError as error:  # a header that the row needs, and nobody has read before
            raise BadRow(str(error)) from error

    def _inverted(self, prompt: Prompt) -> Prompt:
        """Returns the prompt asked the other way round, by the chance that the settings give."""
        if not self.settings.inverted:
            return prompt
        found = inverted(prompt, self.settings.inverted, self.settings.seed or 0)
        self.num_inverted += bool(found.target["is_inverted"])
        return found

    def _changed(self, prompt: Prompt) -> Prompt:
        """Returns the prompt with the fields that the settings add to its target, its text in the template."""
        added = self.settings.target
        if not added and self.settings.template is None:
            return prompt  # most data sets, of which some have many rows
        if clash := added.keys() & prompt.target.keys():
            raise BadRow(f"target: the row has {', '.join(sorted(clash))} already, got {prompt.target!r:.80}")
        target = {**prompt.target, **added}
        return replace(prompt, text=self._templated(prompt.text, target), target=target)

    def _check_target(self, prompt: Prompt, raw: RawRow) -> None:
        """Raises BadRow where the target lacks what a reward needs; the message names the fields of the row."""
        missing = self.needed.lacking(prompt)
        if missing is None:
            if fault := self.needed.fault(prompt):
                raise BadRow(fault)
            return
        lacking, reward = missing
        if lacking in raw.values and raw.values[lacking] is None:
            raise BadRow(f"its field {lacking!r}, which reward {reward!r} needs, is null")
        hint = ""
        if lacking in self.layout.fields and (like := nearest(lacking, raw.values)) and like != lacking:
            hint = f"; map one with columns: {{{lacking}: {like}}}"
        raise BadRow(
            f"reward {reward!r} needs {lacking!r} in the target, which layout {self.settings.layout!r} "
            f"does not find here; the row's fields are {', '.join(sorted(raw.values))}{hint}"
        )

    def report(self, num_good: int) -> None:
        """Logs how many rows were skipped, if any, and how many questions are inverted, if any should be."""
        if self.skipped:
            total, where = num_good + len(self.skipped), ", ".join(_paths(self.settings))
            log.warning("prompts: skipped %d of %d rows of %s", len(self.skipped), total, where)
        if self.settings.inverted:
            said = ("prompts: %d of %d questions are asked the other way round", self.num_inverted, num_good)
            (log.info if self.num_inverted else log.warning)(*said)

    @cached_property
    def _images(self) -> Path | None:
        return None if self.settings.images is None else Path(self.settings.images).expanduser()

    def _folder(self, raw: RawRow) -> PictureFolder:
        root = raw.images if self._images is None else self._images
        if root not in self.folders:
            most = {None: CHECKED, True: math.inf, False: 0}[self.settings.headers]
            most = math.inf if self.settings.decode else most
            self.folders[root] = PictureFolder(root, self.settings.outside, most, HeaderIndex.of(root))
        return self.folders[root]

    def _own_names(self, values: Any) -> dict[str, Any]:
        """Returns a row whose columns have the names of the layout's fields."""
        columns = self.settings.columns
        if not columns:
            return values if isinstance(values, dict) else dict(values)
        renamed = {key: value for key, value in values.items() if key not in columns.values() and key not in columns}
        return renamed | {own: values[name] for own, name in columns.items() if name in values}

    def _templated(self, text: str, target: Mapping[str, Any]) -> str:
        if self.settings.template is None:
            return text
        template = template_text(self.settings.template)
        for name in filter(None, SLOT.findall(template)):
            if name in TRUTH or not isinstance(target.get(name), str | int | float):
                known = [key for key in target if key not in TRUTH]
                raise BadRow(f"the template names the field {name!r} of the row{did_you_mean(name, known)}")
        # in one pass: braces inside the row's own text are no slots
        return SLOT.sub(lambda slot: text if slot[1] is None else str(target[slot[1]]), template)


def _decode(prompt: Prompt) -> None:
    try:
        given = prompt.target.get(OFFLINE, ())
        for picture in (*prompt.media, *(one for one in given if isinstance(one, StoredPicture))):
            picture.load()
        for clip in (*prompt.clips, *(one for one in given if isinstance(one, StoredClip))):
            clip.load(FrameSampling(num_frames=2))  # which counts all frames, and decodes the first and the last
    except ConfigError as error:
        raise BadRow(str(error)) from error


def _parts(row: RawRow, layout: PartsLayout) -> Iterator[RawRow]:
    """Yields the rows that the one object of a file holds, or each line of it."""
    if row.fault is not None:
        yield row
        return
    path = row.place.rpartition(", row ")[0] or row.place  # of lines, each has its own place
    try:
        for place, values in layout.parts(row.values):
            yield RawRow(f"{path}, {place}", values, row.images)
    except BadRow as error:
        yield RawRow(path, {}, row.images, str(error))


def _joined(rows: Iterable[RawRow], key: str) -> Iterator[RawRow]:
    """Yields one row for all rows that share the value of `key`; each other field is the list of their values."""
    same: dict[Any, list[RawRow]] = {}
    for row in rows:
        if row.fault is not None or not isinstance(row.values.get(key), str | int):
            fault = f"it needs a text or a number as {key!r}, by which rows are joined, got {row.values.get(key)!r:.80}"
            yield RawRow(row.place, row.values, row.images, row.fault or fault)
        else:
            same.setdefault(row.values[key], []).append(row)
    for value, own in same.items():
        place = own[0].place + (f" and {len(own) - 1} more" if len(own) > 1 else "")
        lists = {name: [row.values.get(name) for row in own] for name in own[0].values}
        yield RawRow(place, {**lists, key: value}, own[0].images)


def _chosen(settings: DatasetSettings, layout: Layout) -> Iterator[RawRow]:
    """Returns the rows to read: all, the first `limit`, or `limit` random ones where there is a seed."""
    if settings.images is not None and not Path(settings.images).expanduser().is_dir():
        raise ConfigError(f"prompts: images: there is no folder {settings.images!r}")
    sources = [Source(path, settings.subset, settings.split, settings.cache) for path in _paths(settings)]
    rows: Iterator[RawRow] = (row for source in sources for row in source.rows())
    if isinstance(layout, PartsLayout):
        whole = layout
        rows = (part for row in rows for part in _parts(row, whole))
    if isinstance(layout, JoinedLayout):
        rows = _joined(rows, settings.columns.get(layout.joined_by, layout.joined_by))
    if settings.seed is None:
        return islice(rows, settings.limit)
    every = list(rows)
    order = torch.randperm(len(every), generator=generator(settings.seed, "rows"))
    return (every[number] for number in order[: settings.limit].tolist())


def _check_columns(settings: DatasetSettings, layout: Layout) -> None:
    for name in settings.columns:
        if name not in layout.fields:
            hint = did_you_mean(name, layout.fields)
            raise ConfigError(f"prompts: columns: layout {settings.layout!r} has no field {name!r}{hint}")


def _paths(settings: DatasetSettings) -> tuple[str, ...]:
    return (settings.path,) if isinstance(settings.path, str) else settings.path
