"""Which values of a parametrised test run every time, with the slow tests, or all within one test."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
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


def in_one_test(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Gives a test each of the values, as `pytest.mark.parametrize` does, but as a loop inside one test.

    For quick looks at many values, each of which would take longer to report than to run. What fails says at which
    value. Fixtures of the test are the same for all values.
    """
    names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names
    values = [value if len(names) > 1 else (value,) for value in values]
    assert values, f"there is no value of {names}"

    def decorate(test: Callable[..., None]) -> Any:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            for value in values:
                case = dict(zip(names, value, strict=True))
                try:
                    test(**fixtures, **case)
                except Exception as error:
                    error.add_note(f"with {case}")
                    raise

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in names]
        assert len(left) == len(signature.parameters) - len(names), f"{test.__name__} takes no {names}"
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # read by pytest
        return run

    return decorate
