"""`mmrl list`: the shipped configs, their recipes, the systems of papers, and the plug-ins of each kind."""

import importlib
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from mmrl.commands import families, recipes, suites, systems
from mmrl.core import plugins
from mmrl.core.config import SHIPPED, shipped_names
from mmrl.system import spelling
from mmrl.system.errors import ConfigError

KINDS = ("configs", "recipes", "families", "systems", "suites", *plugins.KINDS, "layouts", "labs")


def rows(kind: str) -> list[dict[str, Any]]:
    """Returns one row per shipped config, recipe or plug-in of a kind. Raises ConfigError for another kind."""
    if kind == "configs":
        return [{"name": name, "summary": _first_sentence(name)} for name in shipped_names()]
    if kind == "recipes":
        return recipes.rows()
    if kind == "families":
        return families.rows()
    if kind == "systems":
        return systems.rows()
    if kind == "suites":
        return suites.rows()
    if not kind:
        raise ConfigError(f"list needs a kind: {', '.join(KINDS)}")
    if kind not in KINDS:
        raise ConfigError(f"there is nothing called {kind!r} to list{spelling.did_you_mean(kind, KINDS)}")
    if kind == "layouts":
        from mmrl.prompts import layout

        return [{"name": name, "summary": _first_line(type(layout.find(name)))} for name in layout.names()]
    if kind == "labs":
        from mmrl import labs

        return [_lab(name) for name in labs.names()]
    return [_row(kind, name) for name in plugins.names(kind)]  # type: ignore[arg-type]


def _row(kind: Any, name: str) -> dict[str, Any]:
    cls = plugins.find(kind, name)
    row: dict[str, Any] = {"name": name, "summary": _first_line(cls)}
    if kind == "rewards":
        row |= {
            "source": cls.source,  # type: ignore[attr-defined]
            "range": [None if math.isinf(end) else end for end in cls.range],  # type: ignore[attr-defined]
            "granularity": cls.granularity,  # type: ignore[attr-defined]
            "needs": sorted(cls.needs),  # type: ignore[attr-defined]
            "differentiable": cls.differentiable,  # type: ignore[attr-defined]
            "batch_size": cls.batch_size,  # type: ignore[attr-defined]
            "holds": sorted(plugins.inner_kinds(cls)),
        }
        row |= _license(cls)
    return row


def _license(reward: object) -> dict[str, str | bool | None]:
    """Returns the licence of the weights that a class of rewards loads by default; None where it loads none."""
    from mmrl.core.rewards import Licensed

    if not isinstance(reward, Licensed):
        return {"license": None, "commercial": None}
    return {"license": reward.license.name, "commercial": reward.license.commercial}


def lines(kind: str, rows: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    """Yields the lines that show the rows of a kind to people. `width`: letters of a line, for rows that wrap."""
    if kind == "recipes":
        yield from recipes.lines(rows, width)
        return
    if kind == "families":
        yield from families.lines(rows)
        return
    if kind == "systems":
        yield from systems.lines(rows, width)
        return
    longest = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        yield f"{row['name']:{longest}}  {row['summary']}"
        if more := details(row):
            yield f"{'':{longest}}  {more}"


def details(row: Mapping[str, Any]) -> str:
    """Returns the facts of a reward in one line; an empty text for other rows."""
    if "granularity" not in row:
        return ""
    if row["holds"]:
        return f"wraps another reward, whose range and needs count too; {row['source']}"
    low, high = ("-inf" if row["range"][0] is None else f"{row['range'][0]:g}"), row["range"][1]
    facts = [f"judges each {row['granularity']}", f"{low} to {'inf' if high is None else f'{high:g}'}"]
    facts += [f"needs {', '.join(row['needs'])}"] if row["needs"] else []
    facts += ["differentiable"] if row["differentiable"] else []
    facts += [f"{row['batch_size']} at once"] if row["batch_size"] else []
    facts += [f"weights: {terms}"] if (terms := weights(row)) else []
    return "; ".join([*facts, row["source"]])


def weights(row: Mapping[str, Any]) -> str:
    """Returns the licence of a reward's default weights in words, from its row; an empty text where it loads none."""
    if row["license"] is None:
        return ""
    name: str = row["license"]
    unstated = {"unknown": "unknown licence", "other": "terms of their own"}
    if row["commercial"]:
        return unstated.get(name, name)
    return (
        f"{unstated[name]}, not known to allow commercial use"
        if name in unstated
        else f"{name}, not for commercial use"
    )


def _lab(name: str) -> dict[str, Any]:
    """Returns the row of a lab with its splits, as `lab:NAME/SPLIT` takes them."""
    world = importlib.import_module(f"mmrl.labs.{name}.world")
    splits = list(getattr(world, "SPLITS", ("train", "held_out")))
    return {"name": name, "summary": f"{_first_line(world)} Splits: {', '.join(splits)}", "splits": splits}


def _first_line(thing: Any) -> str:
    """Returns the first line of the docstring of the plug-in's module."""
    return (inspect.getdoc(inspect.getmodule(thing)) or "").partition("\n")[0]


def _first_sentence(name: str) -> str:
    """Returns the first sentence of the comment at the start of a shipped config."""
    lines = SHIPPED.joinpath(f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    text = " ".join(line.removeprefix("#").strip() for line in comment)
    sentence = re.split(r"(?<!et al)(?<!\bDr)\. ", text, maxsplit=1)[0]
    return sentence.removesuffix(".") + "."
