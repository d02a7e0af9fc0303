"""A console of rich on which the texts of others cannot steer the terminal."""

import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from mmrl.terminal import printable


class Screen(Console):
    """Draws on stdout, or on stderr; what is printed on it, also by others while a bar is shown, is cleaned first."""

    def __init__(self, *, is_error: bool = False) -> None:
        stream = sys.stderr if is_error else sys.stdout
        super().__init__(file=getattr(stream, "rich_proxied_file", stream))

    def print(self, *objects: Any, **settings: Any) -> None:
        """As rich's, but texts are shown as they are written: without colours, markup and emoji."""
        super().print(*map(_cleaned, objects), **settings)

    def on_broken_pipe(self) -> None:
        """Falls silent where nobody reads any more, as behind `| head`; rich itself would end the command."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _cleaned(shown: Any) -> Any:
    if isinstance(shown, Text):  # a line of others that rich caught above its bar
        return Text(printable(shown.plain))
    return Text(printable(shown)) if isinstance(shown, str) else shown
