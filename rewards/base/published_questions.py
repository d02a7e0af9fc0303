"""Questions of published reward models, read from files that are not ours to ship; Python files are never run."""

import ast
from collections.abc import Sequence
from pathlib import Path

from mmrl.core.contracts import ConfigError

PROMPT = "{text_prompt}"  # where the prompt goes in a question


def read_text(what: str, file: str, name: str, origin: str) -> str:
    """Reads a text file, or the constant `name` of a Python file, with its doubled braces made single.

    Args:
        what: what errors call it, such as "question of HPSv3". origin: where the published file is.
    Raises ConfigError where there is none.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no {what} {file!r}: {error}; take {name} of {origin}, as a text file or the file itself"
        ) from error
    if not file.endswith(".py"):
        return text
    return constant(file, text, name).replace("{{", "{").replace("}}", "}")  # published code fills it by str.format


def check_marks(what: str, question: str, marks: Sequence[str]) -> None:
    """Raises ConfigError unless the question holds the place of the prompt and each mark once."""
    if missing := [mark for mark in (*marks, PROMPT) if question.count(mark) != 1]:
        raise ConfigError(f"the {what} must hold {missing[0]} once")


def refuse_marks(text: str, marks: Sequence[str]) -> None:
    """Raises ValueError for a prompt's text with a mark of a model, which would be read as the model's own."""
    if held := [mark for mark in marks if mark in text]:
        raise ValueError(f"the prompt holds {held[0]!r}, a mark of the model")


def constant(file: str, text: str, name: str) -> str:
    """Returns the text that a Python file assigns to a name; raises ConfigError where there is none."""
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise ConfigError(f"{file} is no Python file: {error}") from error
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=own)], value=ast.Constant(value=str(value))) if own == name:
                return value
    raise ConfigError(f"{file} holds no text {name}")
