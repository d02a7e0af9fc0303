"""Manifests: sizes and checksums of the files of a checkpoint, by which damage is found and named."""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmrl.system.errors import ConfigError
from mmrl.system.files import read_plain

MANIFEST = "manifest.json"
_CHUNK = 2**24  # bytes


class DamagedError(ConfigError):
    """A file that differs from what was written; the message names the file and the damage."""


class FileFacts(BaseModel):
    """The size and the checksum of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Annotated[int, Field(ge=0)]  # bytes
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

    @classmethod
    def of(cls, path: Path) -> "FileFacts":
        """Returns the facts of a file; reads all of it."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            return cls(size=file.tell(), sha256=digest.hexdigest())


class Manifest(BaseModel):
    """The files of a folder by name, and the SHA-256 of this list, which shows damage of the list too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: Mapping[str, FileFacts]
    sha256: str

    @classmethod
    def of(cls, folder: Path) -> "Manifest":
        """Returns the manifest of all files in a folder; reads them."""
        paths = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
        with ThreadPoolExecutor(4) as pool:  # hashing lets go of the interpreter
            files = dict(zip([path.name for path in paths], pool.map(FileFacts.of, paths), strict=True))
        return cls(files=files, sha256=_digest_of(files))

    def text(self) -> str:
        """Returns the exact content of the manifest's file."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"


def write_manifest(folder: Path) -> None:
    """Writes the manifest of all files in the folder."""
    (folder / MANIFEST).write_text(Manifest.of(folder).text(), encoding="utf-8")


def check_files(folder: Path, *names: str) -> None:
    """Raises DamagedError for the first file that differs from what was written; the manifest is checked first.

    `names`: the only files to check; by default all that the manifest lists.
    """
    files = read_manifest(folder).files
    for name in names:
        if name not in files:
            raise DamagedError(f"{folder / MANIFEST} is damaged: it does not list {name}")
    for name in names or files:
        _check_file(folder / name, files[name])


def read_manifest(folder: Path) -> Manifest:
    """Reads a folder's manifest. Raises DamagedError where it is missing, or differs from what was written."""
    path = folder / MANIFEST
    try:
        content = read_plain(path)
    except FileNotFoundError as error:
        raise DamagedError(f"{path} is damaged: it is missing") from error
    except OSError as error:
        raise DamagedError(f"{path} is damaged: it cannot be read ({error.strerror})") from error
    try:
        found = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise DamagedError(f"{path} is damaged: it is no list of files with their sizes and SHA-256") from error
    if found.sha256 != _digest_of(found.files) or found.text().encode() != content:
        raise DamagedError(f"{path} is damaged: it was changed after it was written")
    return found


def _check_file(path: Path, wanted: FileFacts) -> None:
    try:
        size = path.stat().st_size
        if size != wanted.size:
            raise DamagedError(f"{path} is damaged: it has {size} bytes, {wanted.size} were written")
        found = FileFacts.of(path)
    except FileNotFoundError as error:
        raise DamagedError(f"{path} is damaged: it is missing") from error
    except OSError as error:
        raise DamagedError(f"{path} is damaged: it cannot be read ({error.strerror})") from error
    if found != wanted:
        raise DamagedError(f"{path} is damaged: its SHA-256 is not that of what was written")


def _digest_of(files: Mapping[str, FileFacts]) -> str:
    plain: dict[str, Any] = {name: facts.model_dump() for name, facts in files.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
