"""Writes docs/systems.md from the rows of `mmrl list systems`: `python scripts/systems_page.py`."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from page_tables import config_link, table
from settings_source import escaped

from mmrl.commands import systems

FILE = Path(__file__).parents[1] / "docs" / "systems.md"
HEAD = """# Published systems

Written by `python scripts/systems_page.py`; `mmrl list systems` prints the same rows, and with `--json` also what each
must do before it counts. A row is one system of a paper, or several that need the same part.

- *whole*: nothing of it is known to be missing; at least one config names it under `systems:`; each of these configs
  ran small (`mmrl check --tiny`), as it is now, in the last run of `python scripts/check_systems.py`; and the tests of
  its particular part exist.
- *part*: some of it is there.
- *no*: nothing of it is there yet.

The status is never written down: it follows from configs, tests and `configs/systems/checked.json`, and a config that
is edited counts again after its next dry run. Priority 1 is what most users expect or many other rows need. The
[levels](algorithms.md) say how far a config was tried: none was trained to its paper's numbers.
"""


def page() -> str:
    """Returns the page."""
    rows = systems.rows()
    counted = [(str(one), str(some), str(total)) for one, (some, total) in systems.counts(rows).items()]
    parts = [HEAD, table(("priority", "whole", "rows"), counted) + "\n"]
    for section, group in groupby(rows, key=lambda row: row["section"]):
        head = ("system", "priority", "status", "configs", "level", "missing")
        parts.append(f"## {section}\n\n{table(head, map(cells, group))}\n")
    return "\n".join(parts)


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the cells of one system."""
    configs = ", ".join(map(config_link, row["configs"]))
    name, missing = escaped(row["name"]), escaped(row["missing"])
    return name, str(row["priority"]), f"*{row['status']}*", configs, row["level"] or "", missing


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    print(FILE)
