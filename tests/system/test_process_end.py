"""The process of a command ends with its last line, and loses nothing by it."""

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

ENDING = """
import atexit, gzip, sys, threading, time
from pathlib import Path
from mmrl import __main__ as process

class Freed:
    def __del__(self):
        print("freed", flush=True)

def late():
    time.sleep(0.05)
    Path("thread").write_text("written")

def main():
    global plain, packed, freed
    freed = Freed()
    plain, packed = open("plain", "w"), gzip.open("packed", "wt")
    plain.write("written")
    packed.write("written")
    atexit.register(Path("registered").write_text, "written")
    threading.Thread(target=late).start()
    print("last line")
    LAST

process.main = main
process.run()
"""


def ended(folder: Path, last: str, stdout: IO[str] | int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Runs the program, whose last line is `last`, in a folder."""
    command, buffered = [sys.executable, "-c", ENDING.replace("LAST", last)], {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        command, cwd=folder, env=buffered, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )


@pytest.mark.slow
def test_a_process_ends_without_freeing_and_writes_all_that_is_open(tmp_path: Path) -> None:
    process = ended(tmp_path, "sys.exit(3)")
    assert (process.returncode, process.stdout, process.stderr) == (3, "last line\n", "")
    assert [(tmp_path / name).read_text() for name in ("plain", "thread", "registered")] == ["written"] * 3
    assert gzip.decompress((tmp_path / "packed").read_bytes()) == b"written"


@pytest.mark.slow
def test_an_error_that_nobody_caught_ends_as_python_ends_it(tmp_path: Path) -> None:
    process = ended(tmp_path, "raise KeyError('why')")
    assert (process.returncode, process.stdout) == (1, "last line\nfreed\n")
    assert "KeyError: 'why'" in process.stderr


@pytest.mark.slow
def test_lost_output_is_told_as_python_tells_it(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        process = ended(tmp_path, "sys.exit(0)", full)
    assert process.returncode == 120
    assert "No space left on device" in process.stderr
