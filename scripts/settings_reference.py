"""Writes docs/settings.md from the code: `python scripts/settings_reference.py`. It also prints which settings lack a
comment, and so a meaning on the page.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from settings_source import escaped, meanings, settings, table

from mmrl.core import config, plugins
from mmrl.core.schedules import Schedule
from mmrl.reporting import trackers

FILE = Path(__file__).parents[1] / "docs" / "settings.md"
CONFIG, TRACKERS = "Sections of a config", "Trackers"
KINDS = {kind: kind.capitalize() for kind in plugins.KINDS if kind != "rewards"}  # they have reward_reference.md
HEAD = """# Every setting

Written from the code by `python scripts/settings_reference.py`: from the fields, their types, their defaults, and the
comments beside them. [configs.md](configs.md) says what each section is for and when to use what;
[reward_reference.md](reward_reference.md) has the settings of the rewards.

You must give a setting whose default is *needed*. Settings that several classes share stand under the class that
declares them: a plug-in *also has the settings of* the classes that it names. A section is written
`{setting: value, ...}`, a plug-in `{name: ..., setting: value, ...}`.
"""


@dataclass
class Entry:
    """One class with settings, and its place on the page."""

    cls: type
    title: str
    group: str
    bases: list[type] = field(default_factory=list)  # that declare settings too

    @property
    def anchor(self) -> str:
        """The heading in a link, as GitHub makes it."""
        return "".join(letter for letter in self.title.lower() if letter.isalnum() or letter in "_- ").replace(" ", "-")


def entries() -> list[Entry]:
    """Returns every class with settings, in the order of the page."""
    listed = {entry.cls: entry for entry in _sections()}
    for name, tracker in trackers.TRACKERS.items():
        listed[tracker] = Entry(tracker, f"{name} (tracker)", TRACKERS)
    for kind, group in KINDS.items():
        own = {plugins.find(kind, name): name for name in plugins.names(kind)}
        shared = {base for cls in own for base in _declaring(cls) if base not in own}
        shared |= {value for cls in own for value in _values_of(cls)}
        for cls in sorted(shared - set(listed), key=lambda cls: cls.__name__):
            listed[cls] = Entry(cls, cls.__name__, group)
        for cls, name in own.items():
            listed[cls] = Entry(cls, f"{name} ({plugins.singular(kind)})", group)
    listed[Schedule] = Entry(Schedule, "Schedule", CONFIG)
    for entry in listed.values():
        entry.bases = [base for base in _declaring(entry.cls) if base is not entry.cls]
    return list(listed.values())


def _sections() -> Iterator[Entry]:
    """Returns the classes of the sections of a config, named by their places in it, in the order of the places."""
    places: dict[type, str] = {config.RunConfig: "The run"}
    for cls, place in _places(config.RunConfig, ""):
        places.setdefault(cls, place)
    for cls, place in places.items():
        is_shared = list(places.values()).count(place) > 1
        yield Entry(cls, f"{place} ({cls.__name__})" if is_shared else place, CONFIG)


def _places(cls: type, prefix: str) -> Iterator[tuple[type, str]]:
    for name, hint in settings(cls).items():
        for inner in _classes_in(hint):
            yield inner, prefix + name
            yield from _places(inner, f"{prefix}{name}.")


def _declaring(cls: type) -> list[type]:
    """Returns the class and those of its bases that declare settings, the class first."""
    owners = [owner for owner in cls.__mro__ if is_dataclass(owner) or _is_model(owner)]
    return [owner for owner in owners if settings(owner, inherited=False)]


def _values_of(cls: type) -> Iterator[type]:
    """Returns the classes that are types of settings of a class, at any depth."""
    for hint in settings(cls).values():
        for inner in _classes_in(hint):
            yield from (inner, *_values_of(inner))


def _classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and (is_dataclass(hint) or _is_model(hint)):
        yield hint
    for part in get_args(hint):
        yield from _classes_in(part)


def _is_model(cls: type) -> bool:
    return issubclass(cls, BaseModel) and cls is not BaseModel


def reference() -> str:
    """Returns the page."""
    every = entries()
    by_class = {entry.cls: entry for entry in every}
    parts = [HEAD]
    for group in (CONFIG, TRACKERS, *KINDS.values()):
        parts += [f"## {group}\n", *(_section(entry, by_class) for entry in every if entry.group == group)]
    return "\n".join(parts)


def _section(entry: Entry, by_class: dict[type, Entry]) -> str:
    parts = [f"### {entry.title}", escaped(inspect.cleandoc(entry.cls.__doc__ or "").split("\n\n")[0])]
    if entry.bases:
        named = ", ".join(f"[{by_class[base].title}](#{by_class[base].anchor})" for base in entry.bases)
        parts.append(f"Also has the settings of {named}.")
    if settings(entry.cls, inherited=False):
        links = {cls: one.anchor for cls, one in by_class.items()}
        parts.append(table(entry.cls, links, inherited=False))
    elif not entry.bases:
        parts.append("It has no settings.")
    return "\n\n".join(filter(None, parts)) + "\n"


def lacking() -> list[str]:
    """Returns the settings without a comment, as `module:Class.setting`."""
    rewards = [plugins.find("rewards", name) for name in plugins.names("rewards")]
    owners = dict.fromkeys([entry.cls for entry in entries()] + [base for cls in rewards for base in _declaring(cls)])
    return [
        f"{cls.__module__}:{cls.__qualname__}.{name}"
        for cls in owners
        for name in settings(cls, inherited=False)
        if not meanings(cls).get(name)
    ]


if __name__ == "__main__":
    FILE.write_text(reference(), encoding="utf-8")
    print(FILE)
    print("\n".join(["without a comment:", *missing]) if (missing := lacking()) else "every setting has a comment")
