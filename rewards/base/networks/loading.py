"""One message for all models of transformers that cannot be loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

from mmrl.core.contracts import ConfigError


@contextmanager
def loading(what: str, model: str, kind: str) -> Iterator[None]:
    """Loads a model inside of the block.

    Args:
        what: what errors call it, such as "DPT". model: its hub name or folder. kind: of what a folder must be.
    Raises ConfigError in the place of what transformers raises for a model that it cannot load.
    """
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"cannot load the {what} {model!r}: {shorten(str(error), 300)}; allowed are a hub name (owner/name) or a"
            f" folder of {kind}"
        ) from error
