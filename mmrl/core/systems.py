"""The published systems that mmrl holds or owes, which a config names under `systems`."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

FOLDER = files("mmrl.configs").joinpath("systems")


@dataclass(frozen=True)
class System:
    """One system of a paper, or several that need the same part."""

    name: str
    section: str  # of the page that lists them
    priority: int  # 1 to 3
    works: str  # what must be true before it counts as whole
    missing: str  # what is known to be missing beside configs and tests; empty: nothing
    tests: tuple[str, ...]  # files of tests, or tests (`tests/losses/test_nft.py::test_...`), of its particular part


@cache
def systems() -> tuple[System, ...]:
    """Returns all systems, in the order of their file."""
    text = FOLDER.joinpath("rows.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return tuple(System(**{**row, "tests": tuple(row["tests"])}) for row in rows)


@cache
def names() -> frozenset[str]:
    """Returns the names of all systems."""
    return frozenset(one.name for one in systems())
