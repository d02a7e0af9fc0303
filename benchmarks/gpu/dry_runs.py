"""Runs `mmrl check --tiny` of configs on this machine's device, each in a process of its own, several at a time.

    python -m benchmarks.gpu.dry_runs [CONFIG ...] [--seconds N] [--wheels FOLDER]

Without names it takes all shipped configs. Prints one JSON line for each; exit 1 if one is not good. A kernel that
breaks the device breaks one run, not those behind it. `CUDA_LAUNCH_BLOCKING=1` makes tracebacks exact.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .measuring import gb, processors, significant
from .wheels import installed

if TYPE_CHECKING:
    from mmrl.reporting.metrics_log import MetricsLog

WORKERS = 4  # a GPU divides its time among processes: 15 at once took each config 40 to 140 s on an H200, one 4 s
# What the first process imports, for all others.
IMPORTED = ["torch", "transformers", "diffusers", "peft", "mmrl.commands.check"]


def dry_runs(names: Sequence[str], changes: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yields a row for each config as it ends: `config`, `seconds`, `peak_gb`, `is_good`, or an `error`.

    Those that did not begin within `seconds` are left out.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # what libraries ask at import would spoil CUDA in forks
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    end = time.monotonic() + seconds
    workers = min(len(names), processors(), WORKERS)
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(dry_run, name, tuple(changes), end): name for name in names}
        for done in as_completed(waiting):
            try:
                row = done.result()
            except BrokenProcessPool as error:
                row = {"config": waiting[done], "is_good": False, "error": f"a process ended: {error}"}
            if row is not None:
                yield row


def dry_run(name: str, changes: Sequence[str], end: float) -> dict[str, Any] | None:
    """Returns the row of one config; None behind the end, by the clock that all processes have."""
    begin = time.monotonic()
    if begin > end:
        return None
    import torch

    from mmrl.commands.check import check_tiny
    from mmrl.core.config import load_config
    from mmrl.reporting.metrics_log import MetricsLog
    from mmrl.system.live_tensors import LiveTensors

    row: dict[str, Any] = {"config": name, "is_good": False}
    is_cuda = torch.cuda.is_available()
    live: Any = nullcontext() if is_cuda else LiveTensors()
    try:
        with live, tempfile.TemporaryDirectory(prefix="mmrl-metrics-") as folder:
            metrics = MetricsLog(Path(folder) / "metrics.jsonl")
            row["is_good"] = bool(check_tiny(load_config(name, list(changes)), metrics)["is_good"])
            row["peak_gb"] = gb(peak(metrics) if is_cuda else live.peak)
    except Exception as raised:  # whatever a machine that was never tried does is a finding
        row["error"] = f"{type(raised).__name__}: {raised}".partition("\n")[0][:300]
        row["where"] = [f"{Path(one.filename).name}:{one.lineno}" for one in traceback.extract_tb(raised.__traceback__)]
    return row | {"seconds": significant(time.monotonic() - begin)}


def peak(metrics: "MetricsLog") -> float:
    """Returns the most bytes of tensors on the GPU: a run begins its peak anew in each phase, and logs the highest."""
    import torch

    logged = max((line.get("memory/highest", 0.0) for line in metrics.read()), default=0.0)
    return float(max(logged * 2**30, torch.cuda.max_memory_allocated()))


def main(arguments: Sequence[str]) -> int:
    """Runs what is named, or all. Returns 1 if one is not good."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", metavar="CONFIG")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="none begins later")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="of wheels to use, installed first")
    options = parser.parse_args(arguments)
    with installed(options.wheels):
        from mmrl.core.config import shipped_names

        rows = []
        for row in dry_runs(options.configs or shipped_names(), ["threads=1"], options.seconds):
            rows.append(row)
            print(json.dumps(row), flush=True)
    return int(not all(row["is_good"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
