"""Tables and links that the scripts of generated pages share."""

import importlib
import inspect
from collections.abc import Iterable, Sequence

from settings_source import escaped

from mmrl.core import plugins


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of Markdown; its cells are Markdown already, of one line each."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        assert len(row) == len(head), row
        lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|")
    return "\n".join(lines)


def plugin_link(kind: plugins.Kind, name: str) -> str:
    """Returns the name of a plug-in as a link to its settings."""
    if kind == "rewards":
        return f"[`{name}`](reward_reference.md#{name})"
    return f"[`{name}`](settings.md#{name}-{plugins.singular(kind)})"


def config_link(name: str) -> str:
    """Returns the name of a shipped config; those that are no lab's have their sections in recipes.md."""
    return f"`{name}`" if name.startswith("lab/") else f"[`{name}`](recipes.md#{name})"


def summary(kind: plugins.Kind, name: str) -> str:
    """Returns the first line of the docstring of a plug-in's module, as Markdown."""
    module = importlib.import_module(plugins.find(kind, name).__module__)
    return escaped(inspect.cleandoc(module.__doc__ or "").partition("\n")[0])
