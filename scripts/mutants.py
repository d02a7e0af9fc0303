"""Plants the faults of mutants.toml and mutants/*.toml one at a time and shows that the tests catch each.

Exit code 1 where a fault survives, its text is not found exactly once, or the tests fail without any fault.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
NUM_WORKERS = 2
MAX_SECONDS = 300.0  # of the tests of one fault; one that makes them hang is caught, too
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "runs", "build", "dist")


@dataclass(frozen=True)
class Fault:
    """One wrong line."""

    what: str
    file: str  # relative to the repository
    old: str  # as it stands in the file, once
    new: str
    tests: tuple[str, ...]  # files relative to the repository

    def plant(self, folder: Path) -> str:
        """Puts the fault into the copy `folder`; returns the text that the file had. Raises ValueError if it cannot."""
        path = folder / self.file
        text = path.read_text("utf-8")
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file} holds {count} times {self.old!r}; the text of the fault is out of date")
        path.write_text(text.replace(self.old, self.new), "utf-8")
        return text


def read_faults(folder: Path) -> list[Fault]:
    """The faults of `mutants.toml` and of the files in `mutants` in the folder."""
    files = [folder / "mutants.toml", *sorted((folder / "mutants").glob("*.toml"))]
    rows = [row for file in files for row in tomllib.loads(file.read_text("utf-8"))["fault"]]
    return [Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def failing_test(
    folder: Path, tests: Sequence[str], seconds: float = MAX_SECONDS, *, with_slow: bool = False
) -> str | None:
    """The first test that fails in `folder`, None where all pass. Raises ValueError where pytest cannot run them.

    With `with_slow` the slow tests run too, and as many examples are tried as in CI.
    """
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    options += ["-m", "not exhaustive and not gpu" if with_slow else "not slow and not exhaustive and not gpu"]
    options += ["-p", "_hypothesis_pytestplugin", "--hypothesis-profile=thorough"] if with_slow else []
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",  # a fault may have the size and the second of the text before it
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end after {seconds:.0f} s"
    if done.returncode == 0:
        return None
    named = re.search(r"^(?:FAILED|ERROR) \S+::(\S+)", done.stdout, re.MULTILINE)
    if done.returncode != 1 or named is None:  # a file that cannot be imported proves nothing
        raise ValueError(f"pytest did not run {', '.join(tests)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return named[1]


def judge(fault: Fault, folder: Path) -> str | None:
    """The test that catches the fault in the copy `folder`, None where it survives; the copy is put back.

    Slow tests are asked only where no fast one fails, and must pass without the fault.
    """
    text = fault.plant(folder)
    try:
        by = failing_test(folder, fault.tests)
        if by is not None:
            return by
        by = failing_test(folder, fault.tests, with_slow=True)
    finally:
        (folder / fault.file).write_text(text, "utf-8")
    if by is not None and failing_test(folder, fault.tests, with_slow=True) is not None:
        raise ValueError(f"{by} fails without any fault")
    return by


def main(words: Sequence[str]) -> int:
    """Judges all faults, or those that hold a word; returns the exit code."""
    faults = [
        fault
        for fault in read_faults(ROOT / "scripts")
        if not words or any(word in f"{fault.file} {fault.what}" for word in words)
    ]
    if not faults:
        print(f"no fault's file or description holds {' or '.join(words)}")
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, ThreadPoolExecutor(NUM_WORKERS) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(NUM_WORKERS):
            copies.put(shutil.copytree(ROOT, Path(place) / str(number), symlinks=True, ignore=NOT_COPIED))
        first = Path(place) / "0"
        print(f"{len(faults)} faults; first the tests as they are", flush=True)
        broken = failing_test(first, sorted({test for fault in faults for test in fault.tests}), 10 * MAX_SECONDS)
        if broken is not None:
            print(f"{broken} fails without any fault")
            return 1

        def work(fault: Fault) -> bool:
            folder, start = copies.get(), time.monotonic()
            try:
                by = judge(fault, folder)
            except ValueError as error:
                print(f"ERROR     {fault.file}: {fault.what}: {error}", flush=True)
                return False
            finally:
                copies.put(folder)
            seconds = time.monotonic() - start
            verdict = f"caught    {fault.file}: {fault.what} ({by}, {seconds:.0f} s)"
            print(verdict if by else f"SURVIVED  {fault.file}: {fault.what}", flush=True)
            return by is not None

        caught = list(pool.map(work, faults))
    print(f"{sum(caught)} of {len(caught)} faults caught")
    return 0 if caught and all(caught) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only faults whose file or description holds one")
    sys.exit(main(parser.parse_args().words))
