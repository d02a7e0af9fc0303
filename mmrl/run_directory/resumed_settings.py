"""The settings that a resumed run may change, and those that decide its numbers and may not."""

from collections.abc import Mapping
from typing import Any

from mmrl.core.config import DESCRIBING
from mmrl.core.plugins import RENAMED, singular

# sections and settings; all else decides the numbers
MAY_CHANGE = (
    "iterations",
    "max_seconds",
    "checkpoint",
    "trackers",
    "sharding",
    # where and how a server is reached
    *(f"modality.engine.{name}" for name in ("url", "retries", "timeout_seconds", "outage_seconds")),
    "rollout.devices",  # where the next iteration is sampled
    "rollout.saved_every",  # for people to look at
    "evaluation.stop_after",
    "evaluation.max_kl",
    "data",  # threads, and what they may hold
    *DESCRIBING,
)
NAMED = 20  # differences in one message at most
_MISSING = object()


def may_change(key: str) -> bool:
    """Returns whether a resumed run may change a setting, such as `checkpoint.keep`."""
    return any(key == one or key.startswith(f"{one}.") for one in MAY_CHANGE)


def kept_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a config.yaml that may not change, by their full keys: `rewards.0.name` ...

    `tree`: the content of the file without defaults, which may differ between versions of mmrl.
    """
    found: dict[str, Any] = {}
    _flatten("", tree, found)
    return {key: value for key, value in found.items() if not may_change(key)}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns a text for each kept setting that differs: `seed: 0 before, 1 now`; the keys in order."""
    found = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key, _MISSING), now.get(key, _MISSING)
        if type(old) is not type(new) or _present(key, old) != _present(key, new):
            found.append(f"{key}: {_shown(old)} before, {_shown(new)} now")
    more = len(found) - NAMED
    return [*found[:NAMED], f"and {more} more"] if more > 0 else found


def value_at(tree: Any, key: str) -> Any:
    """Returns the value of a full key, such as `checkpoint.keep`; None where there is none."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def put_at(tree: dict[str, Any], key: str, value: Any) -> None:
    """Sets the value of a full key in place; the sections above it must be there."""
    *above, last = key.split(".")
    for part in above:
        tree = tree[part]
    tree[last] = value


def _flatten(prefix: str, value: Any, found: dict[str, Any]) -> None:
    inside = value if isinstance(value, Mapping) else dict(enumerate(value)) if isinstance(value, list) else {}
    for key, one in inside.items():
        _flatten(f"{prefix}.{key}" if prefix else str(key), one, found)
    if not inside:
        found[prefix] = value


def _present(key: str, value: Any) -> Any:
    """Returns the value of a setting, where the name of a plug-in is replaced by its present name."""
    renamed = {former: name for (kind, former), name in RENAMED.items() if key.startswith(f"{singular(kind)}.")}
    return renamed.get(value, value) if key.endswith(".name") and isinstance(value, str) else value


def _shown(value: Any) -> str:
    return "not set" if value is _MISSING else f"{value!r:.80}"
