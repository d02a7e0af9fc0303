"""The exceptions that end a command, and how errors are put into words."""

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Self

LONGEST_LINE = 2000  # letters of one line of a message


def shortened(message: str) -> str:
    """Returns a message without the middle of lines that are too long, as they hold texts such as a prompt."""
    return "\n".join(map(_short_line, message.split("\n")))


def in_one_line(message: str) -> str:
    """Returns a message as one line, without its middle where it is too long."""
    return _short_line(" ".join(message.split()))


def _short_line(line: str) -> str:
    if len(line) <= LONGEST_LINE:
        return line
    kept = LONGEST_LINE // 2
    return f"{line[:kept]} [... {len(line) - 2 * kept:,} letters ...] {line[-kept:]}"


class ConfigError(ValueError):
    """An error in the user's input. The message says what was wrong, what was got, what is allowed. Exit code 2."""

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(str(message)))


class RunError(RuntimeError):
    """A failure of a run that is not the user's input, such as a full disk or too many failed rewards. Exit code 1."""

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(str(message)))


class HangError(RunError):
    """A plug-in that did not return within its time limit."""


class DivergedError(RunError):
    """NaN or infinity from a network where numbers must be finite: its weights are broken, mostly by training."""


class DivergedWeightsError(RunError):
    """The end of a run whose weights training broke, with the iteration and the last good checkpoint."""


class UnjudgedError(RunError):
    """More samples than a run allows could not be judged."""


class Interruption(BaseException):
    """The base of exceptions that a signal raises, and no plug-in, at any place of the program."""


class Failure(str):
    """The reason of a failure in words, with the exception behind it in the process that raised it."""

    error: BaseException

    def __new__(cls, words: str, error: BaseException) -> Self:
        made = super().__new__(cls, shortened(words))
        made.error = error
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:  # a traceback cannot be sent to another process
        return str, (str(self),)


def raised(words: str | None) -> BaseException | None:
    """Returns the exception behind a reason, which `--debug` shows; None where it is unknown."""
    return words.error if isinstance(words, Failure) else None


def describe(error: BaseException) -> str:
    """Returns the class and the message of an exception of a user's code; the class alone where `str` of it fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except (KeyboardInterrupt, Interruption):
        raise
    except BaseException:
        return type(error).__name__


def place(error: BaseException, owner: object) -> str:
    """Returns where an exception was raised, in words.

    That is the innermost line of the user's own files, such as of a function that a shipped reward calls. Without one,
    it is the innermost line of the file of `owner`'s class.
    """
    return place_in(traceback.extract_tb(error.__traceback__), owner)


def place_in(frames: Sequence[traceback.FrameSummary], owner: object) -> str:
    """Returns the same place for a stack, the innermost frame last."""
    own = getattr(sys.modules.get(type(owner).__module__), "__file__", None)
    theirs = [frame for frame in frames if not _is_installed(frame.filename)]
    chosen = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1])
    chosen = theirs[-1] if theirs else chosen
    return f" (at {Path(chosen.filename).name}:{chosen.lineno})"


def _is_installed(file: str) -> bool:
    """Returns whether a file belongs to mmrl, to an installed package or to Python itself."""
    path = Path(file)
    ours = Path(__file__).parents[1]
    folders = (
        ours,
        *(folder.resolve() for folder in ours.iterdir() if folder.is_symlink()),
        Path(os.__file__).parent,  # of Python's own modules
    )
    return not path.is_file() or "site-packages" in path.parts or any(path.is_relative_to(one) for one in folders)
