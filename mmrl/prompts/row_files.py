"""Rows of files, folders and hub data sets, each with the place where a user finds it.

JSON and CSV are read here: `datasets` names no line, stops at the first bad one, and guesses types (the text of a date
becomes a time). All else is read by `datasets` into its memory-mapped Arrow files: images stay on the disk.
"""

import csv
import glob
import json
import logging
import re
import time
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from mmrl.prompts.arrow_rows import table_rows
from mmrl.system.errors import ConfigError

Row = TypeVar("Row")
SILENCE = 5.0  # seconds of reading behind which progress is logged, and again

log = logging.getLogger(__name__)


def rows_with_progress(rows: Iterable[Row], name: str) -> Iterator[Row]:
    """Yields the rows of a file; logs how many were read every `SILENCE` seconds."""
    reported = time.monotonic()
    for number, row in enumerate(rows):
        if (now := time.monotonic()) - reported >= SILENCE:
            reported = now
            log.warning("prompts: %s: %d rows read so far", name, number)
        yield row


FILES = (".jsonl", ".json", ".csv", ".parquet", ".txt")
METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")  # how an image folder describes its files
LONGEST_CELL = 2**24  # characters of a cell of a table: an image in base64 among them
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


class RawRow(NamedTuple):
    """A row as its file has it, with its place for errors."""

    place: str  # file and line or row
    values: Mapping[str, Any]
    images: Path | None  # the folder that its images are under, unless a setting names another
    fault: str | None = None  # why it could not be read


@dataclass(frozen=True)
class Source:
    """A path or a name of the hub, with the settings of `datasets` that load it."""

    path: str
    subset: str | None = None
    split: str | None = None
    cache: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether the path is a file or a folder on this machine."""
        return Path(self.path).expanduser().exists()

    def rows(self) -> Iterator[RawRow]:
        """Returns every row. Raises ConfigError for a file that is missing or cannot be read as a whole."""
        if not self.path.strip():
            raise ConfigError("prompts: path is empty; it needs a file, a folder or the name of a data set of the hub")
        path = Path(self.path).expanduser()
        if path.is_dir():
            metadata = next((path / name for name in METADATA if (path / name).is_file()), None)
            if metadata is None:
                return self._loaded(str(path), path, self.path)
            return map(_image_of_metadata, self._file(metadata, f"{self.path.rstrip('/')}/{metadata.name}"))
        if path.suffix.lower() in FILES:
            return self._file(path, self.path)
        if HUB_NAME.fullmatch(self.path) and not path.exists():
            return self._loaded(self.path, None, self.path)
        raise ConfigError(
            f"prompts: path needs a {', '.join(FILES)} file, a folder or the name owner/name of a data set of the hub, "
            f"got {self.path!r}"
        )

    def _file(self, path: Path, name: str) -> Iterator[RawRow]:
        if not path.is_file():
            raise ConfigError(f"prompts: there is no file {name!r} (`mmrl check --tiny` runs without it)")
        if self.split is not None or self.subset is not None:
            raise ConfigError(f"prompts: split and subset are for folders and hub names, {name!r} is a file")
        suffix = path.suffix.lower()
        if suffix == ".parquet":
            return self._loaded("parquet", path.parent, name, files=str(path))
        return {".jsonl": _json_lines, ".json": _json, ".csv": _csv, ".txt": _text_lines}[suffix](path, name)

    def _loaded(self, what: str, images: Path | None, name: str, files: str | None = None) -> Iterator[RawRow]:
        table = _arrow_table(what, self.subset, self.split or "train", self.cache, name, files)
        for number, values in enumerate(table_rows(table), 1):
            yield RawRow(f"{name}, row {number}", values, images)


def _arrow_table(what: str, subset: str | None, split: str, cache: str | None, name: str, files: str | None) -> Any:
    import datasets
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError

    is_local = files is not None or Path(what).is_dir()
    has_bars = not datasets.are_progress_bars_disabled()
    if is_local:
        datasets.disable_progress_bars()
    try:
        exact = None if files is None else glob.escape(files)
        loaded = datasets.load_dataset(what, subset, data_files=exact, split=split, cache_dir=cache)
        return loaded.with_format("arrow")[:]
    # RuntimeError: a folder with a script, which `datasets` no longer runs; YAMLError: the head of its README
    except (DatasetsError, HfHubHTTPError, OSError, ValueError, RuntimeError, yaml.YAMLError) as error:
        cause = error.__cause__ if isinstance(error, DatasetsError) and error.__cause__ is not None else error
        hint = "" if is_local else " (neither a file or folder here, nor to be had from the hub)"
        raise ConfigError(f"prompts: cannot load {name!r}{hint}: {cause}") from error
    finally:
        if has_bars:
            datasets.enable_progress_bars()


def _image_of_metadata(row: RawRow) -> RawRow:
    """Returns a row of an image folder's metadata whose `file_name` is called `image`."""
    if row.values.get("file_name") is None or row.values.get("image") is not None:
        return row
    values = {key: value for key, value in row.values.items() if key not in ("file_name", "image")}
    values["image"] = row.values["file_name"]
    return RawRow(row.place, values, row.images, row.fault)


def _json_lines(path: Path, name: str) -> Iterator[RawRow]:
    images = path.parent
    with path.open("rb") as file:  # bytes: text would also be cut at characters that may stand inside JSON
        for number, line in enumerate(file, 1):
            if line.strip():
                place = f"{name}, line {number}"
                try:
                    yield _object(place, parsed(line.removeprefix(BOM_UTF8).decode().strip()), images)
                except json.JSONDecodeError as error:  # its own words count lines from here
                    yield RawRow(place, {}, images, f"it is not JSON: {error.msg} at character {error.colno}")
                except (ValueError, RecursionError) as error:
                    yield RawRow(place, {}, images, f"it cannot be read: {error}")


def _text_lines(path: Path, name: str) -> Iterator[RawRow]:
    """Yields every line that is not empty, as the field `line`."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            place = f"{name}, line {number}"
            try:
                text = line.decode("utf-8-sig").strip()
            except UnicodeDecodeError as error:
                yield RawRow(place, {}, path.parent, f"it is no UTF-8: {error}")
                continue
            if text:
                yield RawRow(place, {"line": text}, path.parent)


def _json(path: Path, name: str) -> Iterator[RawRow]:
    try:
        value = parsed(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if path.read_bytes().lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):  # JSON lines by another name
            yield from _json_lines(path, name)
            return
        raise ConfigError(f"prompts: {name!r} is not JSON: {error}") from error
    rows = [value] if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise ConfigError(f"prompts: {name!r} needs a list of objects, got {type(value).__name__}")
    for number, row in enumerate(rows, 1):
        yield _object(f"{name}, row {number}", row, path.parent)


def _csv(path: Path, name: str) -> Iterator[RawRow]:
    """Yields the rows of a CSV file. Cells stay text; empty cells are null."""
    csv.field_size_limit(LONGEST_CELL)  # of the whole process; 131,072 characters by default
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header: list[str] | None = None
        first = 1  # line of the record at hand
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                if header is None or "end of data" in str(error):
                    raise ConfigError(f"prompts: {name!r}, line {first}: {error}; is a quote never closed?") from error
                yield RawRow(f"{name}, line {first}", {}, path.parent, f"it is not CSV: {error}")
                first = reader.line_num + 1
                continue
            except UnicodeDecodeError as error:
                raise ConfigError(f"prompts: cannot read {name!r} after line {reader.line_num}: {error}") from error
            if cells is None:
                return
            place, first = f"{name}, line {reader.line_num}", reader.line_num + 1
            if header is None:
                header = _header(name, cells)
            elif cells and len(cells) != len(header):
                yield RawRow(place, {}, path.parent, f"it has {len(cells)} cells, the header has {len(header)}")
            elif cells:
                values = {key: cell or None for key, cell in zip(header, cells, strict=True)}
                yield RawRow(place, values, path.parent)


def _header(name: str, cells: list[str]) -> list[str]:
    if twice := sorted(cell for cell, count in Counter(cells).items() if count > 1):
        raise ConfigError(f"prompts: the header of {name!r} has {', '.join(map(repr, twice))} more than once")
    return cells


def parsed(text: str) -> Any:
    """Returns the value of JSON text. Raises ValueError or RecursionError for other text, and for a key given twice."""
    return _decoder().decode(text)


@cache
def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_without_twins)  # to make one for each row takes half of the time


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON. Raises ValueError for a key given twice: it is unclear which value is meant."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} stands twice in an object")
    return value


def _object(place: str, value: Any, images: Path) -> RawRow:
    if not isinstance(value, dict):
        return RawRow(place, {}, images, f"it needs an object of fields, got {str(value)[:80]!r}")
    return RawRow(place, value, images)
