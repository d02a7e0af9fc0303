"""Metrics that had another name: what reads the log of an older run finds them under the names of now."""

from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")

RENAMED: Mapping[str, str] = {
    "tokens/drawn": "tokens/sampled",
}


def renamed(metrics: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the metrics under the names of now, in their order; where both names stand, the value of the new one."""
    return {RENAMED.get(name, name): metrics.get(RENAMED.get(name, name), value) for name, value in metrics.items()}
