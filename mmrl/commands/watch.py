"""`mmrl report RUN --watch`: the report of a run in a browser of this machine, while the run trains."""

from pathlib import Path

from mmrl.reporting.loopback import stop_signals
from mmrl.reporting.watch import serving
from mmrl.run_directory.lock import RunLock
from mmrl.system.errors import ConfigError


def watch(run: Path, port: int) -> None:
    """Serves the report until SIGINT or SIGTERM. Raises ConfigError where there is no run, and for a port in use."""
    if not run.is_dir():
        raise ConfigError(f"no run directory at {run}")
    lock = RunLock(run.absolute())
    with stop_signals() as is_over, serving(run, port, lambda: lock.is_taken) as address:
        print(f"{run} is shown at {address} (Ctrl-C ends it)", flush=True)
        is_over.wait()
    print("stopped", flush=True)
