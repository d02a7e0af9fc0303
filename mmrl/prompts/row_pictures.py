"""The images of a row, from paths, bytes or base64 text, as stored pictures."""

import base64
import binascii
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from mmrl.media.header_index import HeaderIndex
from mmrl.media.pictures import StoredPicture
from mmrl.system.errors import ConfigError

# how PNG, JPEG, GIF, WebP, BMP and TIFF begin in base64
BASE64_STARTS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "Qk", "SUkqA", "TU0AK")
BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
LOOKED = 50  # files of a folder that are looked for one by one before the folder is listed
SHORTEST_BASE64 = 64  # characters; no image is smaller, and hardly a path without a dot is longer


class BadRow(ValueError):
    """A row that cannot become a prompt; the message says what is wrong with it."""


@dataclass
class PictureFolder:
    """The folder `root` that the image paths of a data set start from; None: paths cannot be resolved.

    A path may not leave the folder, by `..`, by an absolute path or by a link, unless `outside` allows it.
    """

    root: Path | None
    outside: bool = False
    max_checked: float = math.inf  # images and videos whose headers are read with the rows, the first ones
    index: HeaderIndex = field(default_factory=HeaderIndex, compare=False, repr=False)
    num_checked: int = field(default=0, init=False)
    _seen: dict[str, StoredPicture] = field(default_factory=dict, compare=False, repr=False)
    _checked_clips: set[Path] = field(default_factory=set, compare=False, repr=False)
    _looked: dict[str, int] = field(default_factory=dict, compare=False, repr=False)  # files looked for, by folder
    _listings: dict[str, "_Listing | None"] = field(default_factory=dict, compare=False, repr=False)

    def picture(self, value: Any, name: str) -> StoredPicture:
        """Returns an image from a path, bytes, {bytes, path}, base64 text (a data URI or bare) or a PIL image.

        Its header is read, unless those of `max_checked` others were. `name` is its name in errors. Raises BadRow for
        any other value, such as a web address or a path that leaves the folder, for a file that is missing, and for one
        whose header is read and is that of no image.
        """
        if isinstance(value, str):
            if (seen := self._seen.get(value)) is not None:
                return seen
            if not _is_encoded(value):
                path = self._listed(value) or self._looked_for(value, "image")
                found = self._checked(StoredPicture(value, path=path, index=self.index))
                self._seen[value] = found
                return found
        if isinstance(value, Mapping):
            if value.get("bytes") is not None:
                return self.picture(value["bytes"], f"{name} ({value['path']})" if value.get("path") else name)
            if value.get("path") is not None:
                return self.picture(value["path"], name)
            raise BadRow(f"{name} needs 'bytes' or 'path', got {', '.join(map(str, value)) or 'nothing'}")
        return self._checked(StoredPicture(name, content=content_of(value, name), index=self.index))

    def checks(self, clip: Path) -> bool:
        """Returns whether the header of a video is to be read now; each file counts once."""
        if clip in self._checked_clips or self.num_checked >= self.max_checked:
            return False
        self._checked_clips.add(clip)
        self.num_checked += 1
        return True

    def _checked(self, picture: StoredPicture) -> StoredPicture:
        if self.num_checked < self.max_checked:
            self.num_checked += 1
            try:
                width, height = picture.size
            except ConfigError as error:
                raise BadRow(str(error)) from error
            if min(width, height) < 1:
                raise BadRow(f"the image {picture.name} is empty")
        return picture

    def find(self, text: str, what: str = "image") -> Path:
        """Returns the file of a path; `what` is its name in errors. Raises BadRow as `picture` does."""
        listed = self._listed(text)
        return self._looked_for(text, what) if listed is None else Path(listed)

    def _looked_for(self, text: str, what: str) -> Path:
        if re.match(r"(https?|ftp|s3|gs|hf)://", text, re.IGNORECASE):
            raise BadRow(f"{text!r} is an address; {what}s are not fetched from the web: give files or bytes")
        if self.root is None:
            raise BadRow(f"the {what} {text!r} is a path; say with `images` which folder it is under")
        try:
            path = (self.root / text.removeprefix("file://")).resolve()
            is_inside = path.is_relative_to(self.root.resolve())
            if not is_inside and not self.outside:
                raise BadRow(
                    f"the {what} {text!r} lies outside of {str(self.root)!r}; "
                    "set `images` to the folder it is under, or `outside: true`"
                )
            if not path.is_file():
                raise BadRow(f"there is no {what} file {text!r} under {str(self.root)!r}")
        except (OSError, RuntimeError) as error:  # a name that is too long, links in a circle
            raise BadRow(f"cannot look for the {what} {text[:80]!r}: {error}") from error
        except ValueError as error:
            if isinstance(error, BadRow):
                raise
            raise BadRow(f"{text[:80]!r} is no path: {error}") from error
        return path

    def _listed(self, text: str) -> str | None:
        """Returns the file of a plain path by the listing of its folder; None where it must be looked for.

        A folder is listed when many of its files were looked for, so that a large one is not listed for a few. A text,
        since the path of each of many files takes a tenth of the time in which they are read.
        """
        above, _, name = text.rpartition("/")
        if self.root is None or not name or "//" in text:
            return None
        if above not in self._listings:
            looked = self._looked[above] = self._looked.get(above, 0) + 1
            if looked <= LOOKED:
                return None
            self._listings[above] = _Listing.of(self.root, above, self.outside)
        listing = self._listings[above]
        return f"{listing.folder}/{name}" if listing is not None and name in listing.files else None


@dataclass(frozen=True)
class _Listing:
    """The files of one folder, without links, which may lead out of it."""

    folder: str  # resolved
    files: frozenset[str]

    @classmethod
    def of(cls, root: Path, above: str, outside: bool) -> "_Listing | None":
        """Returns the listing of a folder under the root; None where it cannot be listed, or lies outside."""
        try:
            folder = (root / above).resolve()
            if not outside and not folder.is_relative_to(root.resolve()):
                return None
            with os.scandir(folder) as entries:
                return cls(str(folder), frozenset(one.name for one in entries if one.is_file(follow_symlinks=False)))
        except (OSError, RuntimeError, ValueError):  # `find` says what is wrong with each file
            return None


def _is_encoded(text: str) -> bool:
    if text.startswith("data:"):
        return True
    is_long = len(text) >= SHORTEST_BASE64 and text.startswith(BASE64_STARTS)
    return is_long and BASE64.fullmatch(text) is not None


def content_of(value: Any, name: str) -> bytes | memoryview:
    """Returns the bytes of a file from bytes, base64 text (a data URI or bare) or a PIL image; else raises BadRow."""
    if isinstance(value, memoryview | bytes):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, str):
        header, comma, text = value.partition(",") if value.startswith("data:") else ("", ",", value)
        if not comma or (header and not header.endswith(";base64")):
            raise BadRow(f"{name} is a data URI that is not in base64: {value[:40]!r}")
        try:
            return base64.b64decode(re.sub(r"\s", "", text), validate=True)
        except binascii.Error as error:
            raise BadRow(f"{name} is not base64: {error}") from error
    if hasattr(value, "save") and hasattr(value, "getbands"):  # an image of Pillow, without importing it
        buffer = BytesIO()
        value.save(buffer, format="PNG")
        return buffer.getvalue()
    raise BadRow(f"{name} must be a path, bytes, base64 or an image, got {type(value).__name__}")
