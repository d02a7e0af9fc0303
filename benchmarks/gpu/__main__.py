"""Measures mmrl on a GPU: twelve checks at the sizes of real models, with random weights that are made on the device.

    python -m benchmarks.gpu [CHECK ...] [--group 1|2|3] [--tiny] [--device cuda|cpu] [--results FOLDER]
    python -m benchmarks.gpu --versions

One JSON line for each check on stdout and nothing else there; messages go to stderr. Exit 1 if a check fails: where it
raises, where two ways that must agree do not, and on a GPU where a bar of speed is not met. Each check has a budget of
seconds, after which it begins no case but its first; `skipped` names what was left, and why. A group takes less than 8
minutes. Where a check breaks the device for its process, those behind it run in a new one.

`--tiny` runs the same code at small sizes, by default on the CPU. Results of a GPU at real size go into
`benchmarks/gpu/results/` (`--results`); `python -m benchmarks.gpu.page` makes docs/gpu.md of them.
`--versions` prints what is installed, for `scripts/gather_wheels.py`, which gathers what is missing for a machine
without a network; `--wheels FOLDER` installs such a folder first, below a temporary folder of this process alone.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import IO

from . import results
from .running import CHECKS, GROUPS, Check, chosen, is_lost, run
from .wheels import installed


def main(arguments: Sequence[str]) -> int:
    """Runs the checks that are asked for. Returns 1 if one fails, 2 for a name that is no check's."""
    options = _options(arguments)
    if options.versions:
        print(json.dumps(results.machine()))
        return 0
    try:
        checks = chosen(options.checks, options.group)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    with installed(options.wheels):
        device = options.device or ("cpu" if options.tiny else "cuda")
        with _alone_on_stdout() as out:
            return _run_all(checks, options, device, out)


def _run_all(checks: Sequence[Check], options: argparse.Namespace, device: str, out: IO[str]) -> int:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device; `--tiny` runs all checks small on the CPU", file=sys.stderr)
        return 2
    folder = options.results or (results.FOLDER if device == "cuda" and not options.tiny else None)
    have_passed = True
    for number, check in enumerate(checks):
        print(f"{check.name} ...", file=sys.stderr, flush=True)
        line = run(check, is_tiny=options.tiny, device=device)
        print(json.dumps(line), file=out, flush=True)
        if folder is not None:
            results.write(folder, device, [line], is_tiny=options.tiny)
        have_passed &= line["status"] == "passed"
        if (rest := checks[number + 1 :]) and is_lost(device):
            again = [sys.executable, "-m", str(__package__), *[one.name for one in rest], f"--device={device}"]
            again += ["--tiny"] * options.tiny + ([] if folder is None else [f"--results={folder}"])
            subprocess.run(again, stdout=out)
            return 1
    return int(not have_passed)


@contextmanager
def _alone_on_stdout() -> Iterator[IO[str]]:
    """Yields the only way to stdout: what libraries and processes print there goes to stderr in the block."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(kept, "w", encoding="utf-8", closefd=False) as out, redirect_stdout(sys.stderr):
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(check.name for check in CHECKS))
    parser.add_argument("--group", type=int, choices=GROUPS)
    parser.add_argument("--tiny", action="store_true", help="all of it at small sizes")
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="of the result file")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="of wheels to use, installed first")
    parser.add_argument("--versions", action="store_true", help="print what is installed, and end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
