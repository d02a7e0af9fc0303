"""Names of metrics: those that differ between equal runs, and former ones, which are read as the present ones."""

from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

RENAMED: Mapping[str, str] = {
    "tokens/drawn": "tokens/sampled",
}

VARYING = ("time/", "memory/")  # begin the names of metrics that differ between equal runs


def renamed(metrics: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the metrics under their present names, in order; where both names stand, the value of the present one."""
    return {RENAMED.get(name, name): metrics.get(RENAMED.get(name, name), value) for name, value in metrics.items()}
