"""The ways in which a command ends badly."""

import sys
import traceback
from pathlib import Path
from typing import Self


class ConfigError(ValueError):
    """The user's input is wrong: says what was wrong, what was got and what is allowed. Exit code 2."""


class RunError(RuntimeError):
    """The run failed for a reason that is not the user's input (disk full, too many failed rewards). Exit code 1."""


class DivergedError(RunError):
    """A network gave NaN or infinity where its numbers must be finite: its weights are broken, mostly by training."""


class Failure(str):
    """Why something failed, in words; with them goes what was raised, in the process where it was."""

    error: BaseException

    def __new__(cls, words: str, error: BaseException) -> Self:
        made = super().__new__(cls, words)
        made.error = error
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:  # a traceback cannot be sent to another process
        return str, (str(self),)


def raised(words: str | None) -> BaseException | None:
    """What was raised behind these words, where it is known: the cause that `--debug` shows."""
    return words.error if isinstance(words, Failure) else None


def place(error: BaseException, owner: object) -> str:
    """Where it was raised, in words: the last line of the file of `owner`'s class, else the last of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(sys.modules.get(type(owner).__module__), "__file__", None)
    chosen = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1])
    return f" (at {Path(chosen.filename).name}:{chosen.lineno})"
