"""Wheels that were carried to a machine without a network."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def installed(wheels: Path | None) -> Iterator[None]:
    """Has the wheels of a folder installed below a temporary folder in the block; None: there are none."""
    with tempfile.TemporaryDirectory(prefix="mmrl-wheels-") as folder:
        if wheels is not None:
            install(wheels, Path(folder))
        yield


def install(wheels: Path, target: Path) -> None:
    """Installs the wheels of a folder into `target`, without a network, where this process finds them first."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    files = [str(path) for path in sorted(wheels.glob("*.whl"))]
    subprocess.run([*command, "--target", str(target), *files], check=True, stdout=sys.stderr)
    sys.path.insert(0, str(target))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])
