"""The ways in which a command ends badly."""

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Self

LONGEST_LINE = 2000  # letters of a message, in one line


def shortened(message: str) -> str:
    """A message that may hold texts of any length, such as a prompt, without the middle of lines that are too long."""
    return "\n".join(map(_short_line, message.split("\n")))


def _short_line(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    kept = LONGEST_LINE // 2
    return f"{line[:kept]} [... {len(line) - 2 * kept:,} letters ...] {line[-kept:]}"


class ConfigError(ValueError):
    """The user's input is wrong: says what was wrong, what was got and what is allowed. Exit code 2."""

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(str(message)))


class RunError(RuntimeError):
    """The run failed for a reason that is not the user's input (disk full, too many failed rewards). Exit code 1."""

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(str(message)))


class HangError(RunError):
    """A plug-in did not answer within its time limit."""


class DivergedError(RunError):
    """A network gave NaN or infinity where its numbers must be finite: its weights are broken, mostly by training."""


class Interruption(BaseException):
    """Ends what is going on, wherever that is: a signal raised it, and no plug-in."""


class Failure(str):
    """Why something failed, in words; with them goes what was raised, in the process where it was."""

    error: BaseException

    def __new__(cls, words: str, error: BaseException) -> Self:
        made = super().__new__(cls, shortened(words))
        made.error = error
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:  # a traceback cannot be sent to another process
        return str, (str(self),)


def raised(words: str | None) -> BaseException | None:
    """What was raised behind these words, where it is known: the cause that `--debug` shows."""
    return words.error if isinstance(words, Failure) else None


def describe(error: BaseException) -> str:
    """Returns the class and the words of an exception of a user's code; the class alone where its words fail."""
    try:
        return f"{type(error).__name__}: {error}"
    except (KeyboardInterrupt, Interruption):
        raise
    except BaseException:
        return type(error).__name__


def place(error: BaseException, owner: object) -> str:
    """Where it was raised, in words: the last line that the user wrote, if any; else the last of `owner`'s class.

    The user's are files that are neither ours nor of installed packages, as a function that a reward of ours calls.
    """
    return place_in(traceback.extract_tb(error.__traceback__), owner)


def place_in(frames: Sequence[traceback.FrameSummary], owner: object) -> str:
    """The same of a stack, the innermost frame last."""
    own = getattr(sys.modules.get(type(owner).__module__), "__file__", None)
    theirs = [frame for frame in frames if not _is_installed(frame.filename)]
    chosen = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1])
    chosen = theirs[-1] if theirs else chosen
    return f" (at {Path(chosen.filename).name}:{chosen.lineno})"


def _is_installed(file: str) -> bool:
    """Whether a file is one of ours, of an installed package or of Python itself."""
    path = Path(file)
    ours = Path(__file__).parents[1]
    folders = (
        ours,
        *(folder.resolve() for folder in ours.iterdir() if folder.is_symlink()),
        Path(os.__file__).parent,  # of Python's own modules
    )
    return not path.is_file() or "site-packages" in path.parts or any(path.is_relative_to(one) for one in folders)
