"""The warnings of diffusers, which a driven pipeline would say again for every paused call."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_LIBRARY = "diffusers"


@contextmanager
def without_warnings() -> Iterator[None]:
    """Drops the warnings of diffusers; its errors are said, and what it raises is raised."""
    import diffusers.utils.logging as library  # makes the handler

    library.get_logger(_LIBRARY)
    handlers = [*logging.getLogger(_LIBRARY).handlers, *logging.getLogger().handlers]
    own = partial(_is_other)  # another object each time, so that nested contexts end apart
    for handler in handlers:
        handler.addFilter(own)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(own)


def without_bars(blocks: Any) -> None:
    """Switches the progress bars of the blocks of a modular pipeline off."""
    if hasattr(blocks, "set_progress_bar_config"):
        blocks.set_progress_bar_config(disable=True)
    for block in (getattr(blocks, "sub_blocks", None) or {}).values():
        without_bars(block)


def _is_other(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING or record.name.split(".")[0] != _LIBRARY
