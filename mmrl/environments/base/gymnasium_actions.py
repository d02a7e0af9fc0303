"""Translations of an agent's action into an environment's of gymnasium: by keys, by clicks, or by a user's function."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy

from mmrl.core.contracts import ConfigError
from mmrl.parsing.actions.action import Action
from mmrl.system.user_modules import own_module

Size = tuple[int, int]  # width, height of the screenshot
ToEnvironment = Callable[
    [Action, Size, Any], Any
]  # action, size, action space -> argument of step; ValueError: refused
BUILT_IN = ("keys", "clicks")


def key_of(action: Action) -> str:
    """Returns the name of an action in a table of keys: `ctrl+c` for a hotkey, the typed text, else the kind."""
    if action.kind == "hotkey":
        return "+".join(key.lower() for key in action.keys)
    return action.text or "" if action.kind == "type" else action.kind


def by_keys(keys: Mapping[str, int]) -> ToEnvironment:
    """Returns the translation into numbers of a discrete space, by the key that is pressed or typed."""

    def number(action: Action, size: Size, space: Any) -> int:
        key = key_of(action)
        if key not in keys:
            raise ValueError(f"{key!r} does nothing here; the keys are {', '.join(keys)}")
        return keys[key]

    return number


def by_clicks(grid: tuple[int, int] | None) -> ToEnvironment:
    """Returns the translation of clicks into places of the action space.

    A place is the number of a cell of the grid (columns, rows) in a discrete space, counted in rows from the top left;
    the cell in a MultiDiscrete space of two (columns, rows); and the point in a Box of two numbers, from the low ends
    of x and y at the top left to the high ends.
    """

    def place(action: Action, size: Size, space: Any) -> Any:
        if action.kind != "click" or action.point is None:
            raise ValueError(f"there are only clicks here, no {action.kind}")
        share = [value / side for value, side in zip(action.point, size, strict=True)]
        if not all(0 <= part < 1 for part in share):
            raise ValueError(f"{action.point} is outside of the screen, {size[0]} x {size[1]} pixels")
        kind = type(space).__name__
        if kind == "Box":
            low, high = numpy.asarray(space.low), numpy.asarray(space.high)
            return (low + (high - low) * numpy.asarray(share)).astype(space.dtype)
        cells = tuple(int(count) for count in space.nvec) if kind == "MultiDiscrete" else grid
        assert cells is not None, "check_clicks refuses a Discrete space without a grid"
        column, row = (int(part * count) for part, count in zip(share, cells, strict=True))
        return numpy.array([column, row], dtype=space.dtype) if kind == "MultiDiscrete" else row * cells[0] + column

    return place


def check_clicks(space: Any, grid: tuple[int, int] | None) -> None:
    """Raises ConfigError where a click cannot be an action of the space."""
    kind = type(space).__name__
    if kind in ("Box", "MultiDiscrete") and tuple(space.shape) == (2,):
        return
    if kind == "Discrete" and grid is not None and grid[0] * grid[1] == int(space.n):
        return
    raise ConfigError(
        "environments.gymnasium: clicks need a Box or MultiDiscrete of two numbers, or a Discrete space and "
        f"`grid: [columns, rows]` with as many cells; got {space} and the grid {grid}"
    )


def of_the_user(name: str) -> ToEnvironment:
    """Returns the function `module:function`; raises ConfigError where there is no such function."""
    module_name, _, function_name = name.partition(":")
    if not function_name:
        raise ConfigError(
            f"environments.gymnasium.actions: {name!r} is none of {', '.join(BUILT_IN)}, and no module:function"
        )
    module = own_module(module_name, f"environments.gymnasium.actions: {name!r}")
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"environments.gymnasium.actions: {module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]  # it is the user's
