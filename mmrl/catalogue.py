"""What `mmrl list` shows."""

import inspect
import math
from itertools import takewhile
from typing import Any

from mmrl import plugins
from mmrl.config import SHIPPED, shipped_names
from mmrl.errors import ConfigError

KINDS = ("configs", *plugins.KINDS)


def rows(kind: str) -> list[dict[str, Any]]:
    """One row per shipped config or plug-in of a kind. Raises ConfigError for another kind."""
    if kind == "configs":
        return [{"name": name, "summary": _first_sentence(name)} for name in shipped_names()]
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


def _first_sentence(name: str) -> str:
    """Of the comment that a shipped config begins with."""
    lines = SHIPPED.joinpath(f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    sentence, _, _ = " ".join(line.removeprefix("#").strip() for line in comment).partition(". ")
    return sentence.removesuffix(".") + "."
