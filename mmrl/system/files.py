"""Files that survive a power cut and appear whole or not at all, and how JSON files are read."""

import errno
import fcntl
import glob
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mmrl.system.errors import ConfigError

_MOMENT = 60.0  # seconds in which a new folder is surely locked


def read_plain(path: Path) -> bytes:
    """Returns the content of a plain file. Raises OSError for any other, such as a pipe, which would block."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return path.read_bytes()


def flush(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all: a reader, also after a power cut, finds the old file or the new one."""
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        temporary.write_bytes(content)
        flush(temporary)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    flush(path.parent)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields a folder to fill, which becomes `target` at the end of the block; `target` must be missing or empty.

    Where the block fails, the folder is removed. A folder that a killed process left is removed by the next call for
    the same target.
    """
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".tmp-{glob.escape(target.name)}-*"):
        _remove_left(left)
    unfinished = target.with_name(f".tmp-{target.name}-{os.getpid()}")
    unfinished.mkdir()
    with _alone(unfinished):
        try:
            yield unfinished
            for path in sorted(unfinished.rglob("*")):
                flush(path)
            try:
                os.rename(unfinished, target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise ConfigError(f"{target} was filled by another process meanwhile; give another --out") from error
            flush(target.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """Yields a new folder among the temporary ones of the machine, which is removed at the end of the block.

    Folders of the same kind that killed processes left are removed as well.
    """
    for left in Path(tempfile.gettempdir()).glob(f"mmrl-{glob.escape(kind)}-*"):
        with suppress(OSError):  # another user's, or one that just ended
            if time.time() - left.stat().st_mtime >= _MOMENT:
                _remove_left(left)
    with tempfile.TemporaryDirectory(prefix=f"mmrl-{kind}-") as name, _alone(Path(name)):
        yield Path(name)


def _remove_left(folder: Path) -> None:
    """Removes a folder, unless the process that locked it still runs."""
    with _alone(folder) as is_left:
        if is_left:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Locks a folder inside of the block, and yields whether that worked.

    False: another process has the lock, or the file system has no locks.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        is_alone = False
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_alone = True
        yield is_alone
    finally:
        os.close(handle)


MAX_DIGITS = 300  # of a whole number: with more digits it is larger than any float
# ValueError: bytes that are no UTF-8, numbers of thousands of digits. RecursionError: brackets nested too deep.
NOT_JSON = (ValueError, RecursionError)


def read_json(path: Path) -> Any:
    """Returns the value of a JSON file. Raises ConfigError, with the path, for a file that cannot be read as JSON."""
    try:
        content = read_plain(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_json(content, str(path))


def parse_json(text: str | bytes, what: str) -> Any:
    """Returns the value of a JSON text, or of bytes in UTF-8.

    Raises ConfigError, which begins with `what`, for others.
    """
    try:
        return json.loads(text, parse_int=_whole)
    except NOT_JSON as error:
        why = "brackets are nested too deep" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{what} is damaged: it is not JSON ({why})") from error


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)
