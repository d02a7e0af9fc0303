"""What outlives a power cut."""

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
