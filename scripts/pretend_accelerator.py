"""Runs `mmrl check --tiny` of configs on the pretend accelerator, and writes what was found.

python scripts/pretend_accelerator.py [CONFIG ...] [--minutes N]

Without names it takes the lab configs and the twins of all real-size configs. Each runs in a process of its own, for 30
to 150 seconds. The result, configs/systems/pretended.json, is written after each, and docs/pretend_accelerator.md with
it; a config that passed and was not edited since is not run again unless it is named. `--minutes` starts none after
that time. Returns the number of configs that mix devices or fail.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.commands.systems import digest
from mmrl.core.config import shipped_names

ROOT = Path(__file__).parents[1]
FILE = ROOT / "configs" / "systems" / "pretended.json"
PAGE = ROOT / "docs" / "pretend_accelerator.md"
SECONDS = 1800  # of one config at most
STEPS = 16  # decoded steps that the host's reads are counted over


def main(arguments: Sequence[str]) -> int:
    """Runs what is left to run, or what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configs", nargs="*", metavar="CONFIG")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(noted(options.configs[0])))
        return 0
    begin, rows = time.monotonic(), read_rows()
    for config in options.configs or shipped_names():
        row = rows.get(config)
        if not options.configs and row is not None and is_good(row) and row["digest"] == digest(config):
            continue
        if options.minutes is not None and time.monotonic() - begin > 60 * options.minutes:
            print(f"{config} and what follows are left for another run")
            break
        rows[config] = run(config)
        print(config, "runs" if is_good(rows[config]) else f"fails: {rows[config]}", flush=True)
        write(rows)
    write(rows)
    return sum(not is_good(row) for row in rows.values())


def run(config: str) -> dict[str, Any]:
    """Returns the row of a config, run in a process of its own."""
    row: dict[str, Any] = {"config": config, "digest": digest(config)}
    command = [sys.executable, __file__, config, "--one"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return row | {"error": f"took more than {SECONDS} seconds"}
    if done.returncode:
        return row | {"error": done.stderr.strip()[-500:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row | found


def noted(config: str) -> dict[str, Any]:
    """Runs a config in this process; returns what was noted, places by how often they were there."""
    sys.path.insert(0, str(ROOT))
    from tests.pretend_accelerator import tiny_run

    passed, notes = tiny_run(config)
    kinds = {"reads": notes.syncs, "copies": notes.copies}
    return {
        "passed": passed,
        "mixes": dict(notes.mixes),
        "units": dict(notes.units),
        **{kind: by_phase(counter) for kind, counter in kinds.items()},
    }


def by_phase(counter: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Returns the counts by phase and line."""
    found: dict[str, dict[str, int]] = {}
    for (phase, line), count in counter.most_common():
        found.setdefault(phase, {})[line] = count
    return found


def is_good(row: Mapping[str, Any]) -> bool:
    """Returns whether a config ran to its end and mixed no devices."""
    return bool(row.get("passed")) and not row["mixes"]


def read_rows() -> dict[str, dict[str, Any]]:
    """Returns what was found before, by config; configs that are gone are left out."""
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else []
    return {row["config"]: row for row in found if row["config"] in shipped_names()}


def write(rows: Mapping[str, dict[str, Any]]) -> None:
    """Writes the result file and the page."""
    ordered = [rows[name] for name in sorted(rows)]
    FILE.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(ordered), encoding="utf-8")


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page of the rows."""
    lines = [
        "# Without a GPU: mixed devices and reads of the host",
        "",
        "Written by `python scripts/pretend_accelerator.py`; do not edit. Each config ran as `mmrl check --tiny` does,",
        "on tensors that say they are on an accelerator and hold tensors of the CPU",
        "(`tests/pretend_accelerator.py`). A",
        "*mix* is an operation on tensors of both devices: an error on a GPU. A *read* is an operation after which the",
        "host waits for the device. `check --tiny` makes two iterations.",
        "",
        f"- **decoding**: reads in {STEPS} steps of decoding: in the loop that samples answers, divided by its blocks",
        f"  of {STEPS} steps (a last block may be shorter).",
        "- **micro-batch**: reads in the forward and backward passes of one micro-batch, of all weights that the loss",
        "  needs. Behind it those of them in mmrl's own lines, and in lines of transformers, diffusers and peft.",
        "- **iteration**: all other reads in an iteration: sampling, scoring, optimizer steps, metrics.",
        "",
        "| config | mixes | decoding | micro-batch | of mmrl | of libraries | iteration |",
        "|---|---|---|---|---|---|---|",
        *(row_of(row) for row in rows),
        "",
        "## Where the host reads",
        "",
        "Per unit: a block of decoded steps, a micro-batch, an iteration. The largest number of all configs stands",
        "with the line.",
        "",
        *lines_of(rows, "decoding"),
        *lines_of(rows, "micro-batch"),
        *lines_of(rows, "iteration"),
    ]
    return "\n".join(lines).rstrip() + "\n"


def row_of(row: Mapping[str, Any]) -> str:
    """Returns a config's row of the table."""
    if "mixes" not in row:
        return f"| {row['config']} | did not end | | | | | |"
    parts = row["reads"].get("micro-batch", {})
    own = sum(count for line, count in parts.items() if " [in " not in line)
    units = units_of(row)
    cells = [
        per(sum(row["reads"].get("decoding", {}).values()), units["decoding"]),
        per(sum(parts.values()), units["micro-batch"]),
        per(own, units["micro-batch"]),
        per(sum(parts.values()) - own, units["micro-batch"]),
        per(sum(row["reads"].get("iteration", {}).values()), units["iteration"]),
    ]
    return f"| {row['config']} | {sum(row['mixes'].values())} | {' | '.join(cells)} |"


def units_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Returns how often each phase was there: blocks of steps, micro-batches, iterations."""
    units = row["units"]
    return {
        "decoding": units.get("block of steps", 0),
        "micro-batch": units.get("micro-batch", 0),
        "iteration": units.get("iteration", 0),
    }


def per(count: int, units: int) -> str:
    return f"{count / units:.1f}" if units else ""


def lines_of(rows: Sequence[Mapping[str, Any]], phase: str) -> list[str]:
    """Returns the list of the lines that read in a phase, the most frequent first."""
    most: dict[str, tuple[float, str]] = {}
    for row in rows:
        units = units_of(row)[phase] if "units" in row else 0
        for line, count in row.get("reads", {}).get(phase, {}).items() if units else ():
            most[line] = max(most.get(line, (0.0, "")), (count / units, row["config"]))
    ordered = sorted(most.items(), key=lambda item: (-item[1][0], item[0]))
    return [f"### {phase}", "", *(f"- {times:.1f} (`{config}`): `{line}`" for line, (times, config) in ordered), ""]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
