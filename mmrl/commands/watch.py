"""`mmrl report RUN --watch`: the report of a run in a browser of this machine, while the run trains."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from mmrl.reporting.watch import serving
from mmrl.system.errors import ConfigError


def watch(run: Path, port: int) -> None:
    """Serves the report until SIGINT or SIGTERM. Raises ConfigError where there is no run, and for a port in use."""
    if not run.is_dir():
        raise ConfigError(f"no run directory at {run}")
    with _signals() as is_over, serving(run, port) as address:
        print(f"{run} is shown at {address} (Ctrl-C ends it)", flush=True)
        is_over.wait()
    print("stopped", flush=True)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Gives an event that SIGINT and SIGTERM set inside of the block."""
    is_over = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        is_over.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield is_over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
