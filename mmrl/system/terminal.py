"""What stands between this program and the terminal: texts of others cannot steer it."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO, cast

from mmrl.system.errors import ConfigError

COLOUR = r"\x1b\[[0-9;:]*m"
CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 but for newlines, tabs and returns of the carriage, DEL, C1
DIRECTIONS = r"\u202a-\u202e\u2066-\u2069"  # in which what follows is written
HALVES = r"\ud800-\udfff"  # of characters, which no stream can write
_UNPRINTABLE = re.compile(rf"{COLOUR}|\r\n?|[{CONTROLS}{DIRECTIONS}{HALVES}]")
_STEERING = re.compile(f"[{CONTROLS}]")
_MOVES_OF_BARS = re.compile(r"\n*(?:\x1b\[A)*")


def printable(text: str) -> str:
    r"""Returns the text as a terminal may show it.

    Colours are left out, returns of the carriage are newlines, and what else could move the cursor, hide text or answer
    for the user is written out as `\u001b`: JSON keeps its meaning. Newlines and tabs stay.
    """
    return _UNPRINTABLE.sub(_replacement, text)


def _replacement(found: re.Match[str]) -> str:
    text = found[0]
    if text.startswith("\r"):
        return "\n"
    return f"\\u{ord(text):04x}" if len(text) == 1 else ""


class PlainStream:
    """A stream to which all text goes as `printable` makes it; otherwise it is the stream behind it.

    Nobody takes it for a terminal, and so most write no sequences at all. Two may draw on one: rich, which takes the
    stream behind (`mmrl.system.progress_bars` cleans what it is given), and tqdm, whose bars go back to the start of
    their line and up to it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # where rich looks for it

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        start = ""
        if _is_tqdm():
            if _MOVES_OF_BARS.fullmatch(text):
                return self.rich_proxied_file.write(text)
            start = "\r" * text.startswith("\r")
        self.rich_proxied_file.write(start + printable(text.removeprefix(start)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return _is_tqdm() and self.rich_proxied_file.isatty()


def _is_tqdm() -> bool:
    """Whether the caller of a stream's method is tqdm."""
    name: str = sys._getframe(2).f_globals.get("__name__", "")
    return name.partition(".")[0] == "tqdm"


def guard_streams() -> None:
    """Puts a PlainStream before stdout and stderr, to the end of the process: logs and tracebacks pass it too."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, PlainStream):
            setattr(sys, name, cast(TextIO, PlainStream(stream)))


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises ConfigError for words of the command line that could steer a terminal: typer shows them as they are."""
    for word in arguments:
        if _STEERING.search(word):
            raise ConfigError(f"the argument {word[:200]!r} holds a control character; it may hold newlines and tabs")
