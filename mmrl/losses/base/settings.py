"""Checks of settings, with one wording for all losses."""

from collections.abc import Sequence


def check_above(name: str, value: float, least: float = 0.0) -> None:
    """ValueError unless value > least."""
    if not value > least:
        raise ValueError(f"{name} must be above {least:g}, got {value}")


def check_at_least(name: str, value: float, least: float = 0.0) -> None:
    """ValueError unless value >= least."""
    if not value >= least:
        raise ValueError(f"{name} must be at least {least:g}, got {value}")


def check_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """ValueError unless it is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
