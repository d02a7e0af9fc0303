"""The rows of `mmrl list systems`: published systems, the configs that name them, and what was proven of each."""

import hashlib
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from mmrl.commands.shipped import sections_in, sections_of
from mmrl.core.config import DESCRIBING, RecipeSettings, shipped_names
from mmrl.core.systems import FOLDER, System, systems

LEVELS = tuple(RecipeSettings.model_fields["level"].annotation.__args__)  # type: ignore[union-attr]  # a Literal


@dataclass(frozen=True)
class Proof:
    """What scripts/check_systems.py found: dry runs of configs, and the tests that were there."""

    passed: Mapping[str, str] = field(default_factory=dict)  # the digest of each config whose dry run passed, by name
    tests: frozenset[str] = frozenset()  # the tests that rows name and that exist

    @classmethod
    def load(cls, path: Path | None = None) -> "Proof":
        """Returns the proof of a file that `check_systems.py` wrote; without a path, of that of mmrl."""
        text = (path or FOLDER.joinpath("checked.json")).read_text(encoding="utf-8")
        found = json.loads(text)
        passed = {row["config"]: row["digest"] for row in found["configs"] if row["passed"]}
        return cls(passed, frozenset(found["tests"]))

    def reason_against(self, config: str) -> str | None:
        """Returns why a config is not proven; None where it is."""
        if config not in self.passed:
            return f"a dry run of {config} that passed"
        return None if self.passed[config] == digest(config) else f"a dry run of {config}, which was edited since"


def digest(config: str | Path) -> str:
    """Returns the SHA-256 of a config's settings, without comments and what a run does not depend on."""
    tree = {name: section for name, section in sections_in(config).items() if name not in DESCRIBING}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def named_by() -> dict[str, list[str]]:
    """Returns the shipped configs that name each system, in the order of their names; only systems that one names."""
    names: dict[str, list[str]] = {}
    for config in shipped_names():
        for system in sections_of(config).get("systems") or ():
            names.setdefault(system, []).append(config)
    return names


def rows(proof: Proof | None = None) -> list[dict[str, Any]]:
    """Returns one row per system, in the order of their list; its status follows from configs, proof and tests."""
    proof, configs = proof or Proof.load(), named_by()
    return [row_of(one, configs.get(one.name, ()), proof) for one in systems()]


def row_of(system: System, configs: Sequence[str], proof: Proof) -> dict[str, Any]:
    """Returns the row of a system with the configs that name it.

    `whole`: nothing is known to be missing, at least one config names it, the dry run of each passed as it is now, and
    its tests, at least one, exist. `part`: a config names it, or one of its tests exists. `no`: neither.
    """
    missing = [system.missing] if system.missing else []
    if not configs:
        missing.append("a config that names it")
    missing += [why for name in configs if (why := proof.reason_against(name)) is not None]
    if not system.tests:
        missing.append("a test")
    missing += [f"the test {name}" for name in system.tests if name not in proof.tests]
    has_part = bool(configs) or any(name in proof.tests for name in system.tests)
    return {
        "name": system.name,
        "section": system.section,
        "priority": system.priority,
        "status": "whole" if not missing else "part" if has_part else "no",
        "configs": list(configs),
        "missing": "; ".join(missing),
        "level": max((sections_in(name)["recipe"]["level"] for name in configs), key=LEVELS.index, default=None),
        "works": system.works,
    }


def counts(rows: Iterable[Mapping[str, Any]]) -> dict[int, tuple[int, int]]:
    """Returns by priority how many systems are whole, and how many there are."""
    ordered = sorted(rows, key=lambda row: row["priority"])
    found = {}
    for priority, group in groupby(ordered, key=lambda row: row["priority"]):
        held = list(group)
        found[priority] = (sum(row["status"] == "whole" for row in held), len(held))
    return found


def lines(rows: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    """Yields a block of lines for each system: status, priority and configs, then what is missing."""
    whole = ", ".join(f"{some} of {total} of priority {one}" for one, (some, total) in counts(rows).items())
    yield from textwrap.wrap(f"Whole: {whole}. `--json` says what each must do.", width)
    for section, group in groupby(rows, key=lambda row: row["section"]):
        yield f"\n{section}"
        for row in group:
            head = f"  {row['status']:5}  {row['priority']}  {row['name']}"
            configs = f": {', '.join(row['configs'])} ({row['level']})" if row["configs"] else ""
            indent = " " * 13
            yield from textwrap.wrap(f"{head}{configs}", width, subsequent_indent=indent, break_on_hyphens=False)
            if row["missing"]:
                text = f"missing: {row['missing']}"
                yield from textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
