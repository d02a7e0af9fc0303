"""The command line as a process of its own: `mmrl`, `python -m mmrl`, `accelerate launch -m mmrl`."""

import atexit
import ctypes
import gc
import io
import os
import sys
from contextlib import suppress
from functools import partial
from typing import NoReturn

from mmrl.cli import main


def run() -> NoReturn:
    """Runs the command, and ends the process without freeing its objects.

    Python would free every object of torch and diffusers one by one, which takes seconds. Threads are still awaited and
    functions registered with atexit are called; files that were left open are written out here.
    """
    ended: list[int] = []
    atexit.register(partial(_leave, ended))  # registered first, called last
    try:
        main()
    except SystemExit as ending:
        ended.append(ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1)
        raise


def _leave(ended: list[int]) -> None:
    """Ends the process with the exit code in `ended`; returns where there is none, or output would be lost."""
    if not ended:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    _write_out_files()
    ctypes.CDLL(None).fflush(None)  # of libraries in C
    os._exit(ended[0])


def _write_out_files() -> None:
    """Flushes or closes every open file."""
    kinds = _below(io.IOBase.__mro__[1])  # the base in C
    files = [one for one in gc.get_objects() if type(one) in kinds]
    plain = [file.flush for file in files if type(file).__module__ == "_io"]
    others = [file.close for file in files if type(file).__module__ != "_io"]  # gzip's has an end of its own to write
    for write in [*plain, *others, *plain]:
        with suppress(OSError, ValueError):  # closed, or only read
            write()


def _below(kind: type) -> set[type]:
    """Returns a class and all classes that are derived from it."""
    children: list[type] = kind.__subclasses__()
    return {kind}.union(*map(_below, children))


if __name__ == "__main__":
    run()
