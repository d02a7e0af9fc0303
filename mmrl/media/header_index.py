"""An index of headers: sizes of images and durations of videos, read once and kept in a file of the user's cache."""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from mmrl.system.files import replace_file

FORMAT = 1  # of the file; a change of what stands in it changes it
WORTH_KEEPING = 500  # headers read by one start; of fewer no file is written, as they are read again in a moment

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Header:
    """Facts from the header of a file's first video stream. All are unknown where PyAV is not installed."""

    seconds: float | None = None  # its duration; None: unknown
    size: tuple[int, int] | None = None  # width and height in pixels; None: unknown


@dataclass
class HeaderIndex:
    """What the headers of the files of one folder say, by path, number of bytes and time of the last change.

    A header is read when somebody asks for it, and only where the index does not know the file as it is now. A file
    that cannot be read is never in the index. Processes that save at the same time lose what one of them has read, no
    more.
    """

    file: Path | None = None  # where it is kept; None: nowhere
    num_read: int = field(default=0, init=False)  # headers that the index did not know
    _known: dict[str, list[Any]] = field(default_factory=dict, init=False, repr=False)  # no file is asked twice

    @classmethod
    def of(cls, root: Path | None) -> Self:
        """Returns the index of the files under a folder, `~/.cache/mmrl/headers/` and a hash of the folder's path."""
        if root is None:
            return cls()
        try:
            name = hashlib.sha256(str(root.resolve()).encode(errors="surrogateescape")).hexdigest()[:32]
            return cls(Path.home() / ".cache" / "mmrl" / "headers" / f"{name}.json")
        except (OSError, RuntimeError):  # links in a circle; a user without a home
            return cls()

    def size(self, path: Path | str, read: Callable[[], tuple[int, int]]) -> tuple[int, int]:
        """Returns the width and height of an image; raises what `read` raises, which reads them from the file."""
        width, height = self._get(path, "size", lambda: list(read()))
        return width, height

    def header(self, path: Path, read: Callable[[], Header]) -> Header:
        """Returns the header of a video; raises what `read` raises, which reads it from the file."""

        def taken() -> list[Any]:
            header = read()
            return [header.seconds, header.size]

        seconds, size = self._get(path, "video", taken)
        return Header(seconds, None if size is None else (size[0], size[1]))

    def save(self) -> None:
        """Writes what was read since the index was made, if it is worth it and the cache can be written to."""
        if self.file is None or self.num_read < WORTH_KEEPING:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.file, json.dumps({"format": FORMAT, "files": self._entries}).encode())
        except OSError as error:
            log.info("headers of images and videos are not kept in %s: %s", self.file, error)
        self.num_read = 0

    def _get(self, path: Path | str, kind: str, read: Callable[[], list[Any]]) -> list[Any]:
        name = str(path)
        if name in self._known:
            return self._known[name]
        try:
            status = os.stat(name)
        except OSError:
            return read()  # which says what is wrong
        now = [kind, status.st_size, status.st_mtime_ns]
        entry = self._entries.get(name)
        if entry is None or entry[:3] != now:
            entry = [*now, *read()]
            self.num_read += 1
            self._entries[name] = entry
        self._known[name] = entry[3:]
        return self._known[name]

    @cached_property
    def _entries(self) -> dict[str, list[Any]]:
        """Returns what the file holds; nothing where there is none, or one that cannot be understood."""
        try:
            content = json.loads(self.file.read_bytes()) if self.file is not None else {}
        except (OSError, ValueError):
            return {}
        is_ours = isinstance(content, dict) and content.get("format") == FORMAT
        files = content["files"] if is_ours and isinstance(content.get("files"), dict) else {}
        return {name: entry for name, entry in files.items() if isinstance(entry, list) and len(entry) == 5}

    def __reduce__(self) -> tuple[Any, ...]:  # to another process goes where it is kept, not what it holds
        return type(self), (self.file,)
