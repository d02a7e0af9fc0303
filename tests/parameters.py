"""Which values of a parametrised test run every time: the others, which take the same code, run with the slow tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *fast: Any) -> list[Any]:
    """Returns the values as parameters, all of them marked `slow` but those that are named."""
    return [pytest.param(value, marks=[] if value in fast else pytest.mark.slow) for value in values]
