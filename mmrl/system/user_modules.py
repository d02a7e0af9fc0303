"""The import of a user's own modules."""

import importlib
from types import ModuleType

from mmrl.system.errors import ConfigError, describe


def own_module(name: str, what: str) -> ModuleType:
    """Returns a module of the user. Raises ConfigError, which begins with `what`, where the import fails."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{what}: cannot import {error.name!r}; a user's own modules are looked up in the working folder and in "
            "installed packages"
        ) from error
    except ConfigError as error:  # of a declaration in the module
        raise ConfigError(f"{what}: {error}") from error
    except Exception as error:  # user code, which may fail in any way while it is imported
        raise ConfigError(f"{what}: importing {name} failed: {describe(error)}") from error
