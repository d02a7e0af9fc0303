"""Which values of a parametrised test run every time: the others, which take the same code, run with the slow tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *fast: Any) -> list[Any]:
    """Returns the values as parameters, all marked `slow` but those that are named; a tuple is several values."""
    values = list(values)
    assert all(value in values for value in fast), f"{fast} are not all among {values}"
    return [
        pytest.param(*(value if isinstance(value, tuple) else [value]), marks=[] if value in fast else pytest.mark.slow)
        for value in values
    ]
