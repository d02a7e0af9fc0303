"""Text for the terminal, made safe: texts from elsewhere cannot control the terminal."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO, cast

from mmrl.system.errors import ConfigError

COLOUR = r"\x1b\[[0-9;:]*m"
CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 without newlines, tabs and carriage returns; DEL; C1
DIRECTIONS = r"\u202a-\u202e\u2066-\u2069"  # characters that change the direction of writing
HALVES = r"\ud800-\udfff"  # half characters, which no stream can write
_UNPRINTABLE = re.compile(rf"{COLOUR}|\r\n?|[{CONTROLS}{DIRECTIONS}{HALVES}]")
_STEERING = re.compile(f"[{CONTROLS}]")
_MOVES_OF_BARS = re.compile(r"\n*(?:\x1b\[A)*")


def printable(text: str) -> str:
    r"""Returns a text that is safe to show on a terminal.

    Colours are removed, carriage returns become newlines, and other characters that could move the cursor, hide text or
    type for the user become escapes such as `\u001b`, so that JSON keeps its meaning. Newlines and tabs stay.
    """
    return _UNPRINTABLE.sub(_replacement, text)


def _replacement(found: re.Match[str]) -> str:
    text = found[0]
    if text.startswith("\r"):
        return "\n"
    return f"\\u{ord(text):04x}" if len(text) == 1 else ""


class PlainStream:
    """A stream that makes all text `printable`, and passes it to the stream behind it.

    It says that it is no terminal, so most libraries write no control sequences. Two may draw on a terminal: rich,
    which uses the stream behind it (`mmrl.system.progress_bars` makes its text printable), and tqdm, whose bars return
    to the start of their line and move up to it.
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
    """Returns whether the caller of a stream's method is tqdm."""
    name: str = sys._getframe(2).f_globals.get("__name__", "")
    return name.partition(".")[0] == "tqdm"


def guard_streams() -> None:
    """Replaces stdout and stderr by PlainStreams to the end of the process, also for logs and tracebacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, PlainStream):
            setattr(sys, name, cast(TextIO, PlainStream(stream)))


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises ConfigError for arguments of the command line with control characters, which typer would print."""
    for word in arguments:
        if _STEERING.search(word):
            raise ConfigError(f"the argument {word[:200]!r} holds a control character; it may hold newlines and tabs")
