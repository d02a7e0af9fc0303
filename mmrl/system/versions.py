"""Versions of installed packages."""

from importlib.metadata import PackageNotFoundError, version


def version_of(package: str) -> str | None:
    """Returns the version of a package; None where the package is not installed, or runs from a bare folder."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
