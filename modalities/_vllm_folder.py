"""The temporary folder that weights are handed over in; one that a killed process left is removed by the next."""

import atexit
import fcntl
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

PREFIX = "mmrl-weights-"
_LOCK = "lock"  # locked for as long as the process lives, however it ends


@cache
def temporary_folder() -> Path:
    """Makes a folder of this process, which is removed when the process ends."""
    _remove_left(Path(gettempdir()))
    folder = Path(mkdtemp(prefix=PREFIX))
    handle = os.open(folder / f".{_LOCK}", os.O_RDWR | os.O_CREAT, 0o600)  # open to the end of the process
    with suppress(OSError):  # a disk without such locks: what is left there stays
        fcntl.flock(handle, fcntl.LOCK_EX)
    (folder / f".{_LOCK}").rename(folder / _LOCK)  # never there without being locked
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _remove_left(place: Path) -> None:
    """Removes the folders in `place` whose process has ended."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is locked, another user's, or gone
            handle = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
