"""What `mmrl list` shows."""

import inspect
import math
from typing import Any

from mmrl import plugins
from mmrl.config import shipped_names
from mmrl.errors import ConfigError

KINDS = ("configs", *plugins.KINDS)


def rows(kind: str) -> list[dict[str, Any]]:
    """One row per shipped config or plug-in of a kind. Raises ConfigError for another kind."""
    if kind == "configs":
        return [{"name": name, "summary": _first_comment(name)} for name in shipped_names()]
    if kind not in KINDS:
        raise ConfigError(f"there is nothing called {kind!r} to list{plugins.did_you_mean(kind, KINDS)}")
    return [_row(kind, name) for name in plugins.names(kind)]  # type: ignore[arg-type]


def _row(kind: Any, name: str) -> dict[str, Any]:
    cls = plugins.find(kind, name)
    summary = (inspect.getdoc(inspect.getmodule(cls)) or "").partition("\n")[0]  # the file's first line says what it is
    row: dict[str, Any] = {"name": name, "summary": summary}
    if kind == "rewards":
        row |= {
            "source": cls.source,  # type: ignore[attr-defined]
            "range": [None if math.isinf(end) else end for end in cls.range],  # type: ignore[attr-defined]
            "granularity": cls.granularity,  # type: ignore[attr-defined]
            "needs": sorted(cls.needs),  # type: ignore[attr-defined]
            "differentiable": cls.differentiable,  # type: ignore[attr-defined]
        }
    return row


def _first_comment(name: str) -> str:
    from mmrl.config import SHIPPED

    first = SHIPPED.joinpath(f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
