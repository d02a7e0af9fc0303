"""Long files: what is said while they are read."""

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Row = TypeVar("Row")
SILENCE = 5.0  # seconds of reading behind which something is said, and again

log = logging.getLogger(__name__)


def rows_with_progress(rows: Iterable[Row], name: str) -> Iterator[Row]:
    """The rows of a file, one by one; every `SILENCE` seconds how many they are so far is logged."""
    told = time.monotonic()
    for number, row in enumerate(rows):
        if (now := time.monotonic()) - told >= SILENCE:
            told = now
            log.warning("prompts: %s: %d rows read so far", name, number)
        yield row
