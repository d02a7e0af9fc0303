"""JSON that was on a disk, where anything may have happened to it."""

import json
from pathlib import Path
from typing import Any

from mmrl.durable import read_plain
from mmrl.errors import ConfigError

MAX_DIGITS = 300  # of a whole number: more are larger than any float
# bytes that are no UTF-8 and numbers of thousands of digits are ValueErrors, brackets without end a RecursionError
NOT_JSON = (ValueError, RecursionError)


def read_json(path: Path) -> Any:
    """Returns the value in a JSON file. Raises ConfigError, with the path, for a file that cannot be read as JSON."""
    try:
        content = read_plain(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_json(content, str(path))


def parse_json(text: str | bytes, what: str) -> Any:
    """Returns the value of a JSON text; bytes are UTF-8. Raises ConfigError, that begins with `what`, for any other."""
    try:
        return json.loads(text, parse_int=_whole)
    except NOT_JSON as error:
        why = "brackets are nested too deep" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{what} is damaged: it is not JSON ({why})") from error


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)
