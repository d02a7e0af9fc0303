"""Modules of the user's own."""

import importlib
from types import ModuleType

from mmrl.system.errors import ConfigError, describe


def own_module(name: str, what: str) -> ModuleType:
    """The module of that name. Raises ConfigError, which begins with `what` asked for it, where it cannot be had."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{what}: cannot import {error.name!r}; what is a user's own is looked up in the working folder and in "
            "installed packages"
        ) from error
    except ConfigError as error:  # of a declaration, which says what is wrong
        raise ConfigError(f"{what}: {error}") from error
    except Exception as error:  # user code, which may fail in any way while it is imported
        raise ConfigError(f"{what}: importing {name} failed: {describe(error)}") from error
