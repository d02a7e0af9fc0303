"""Runs `mmrl check --tiny` of every config that a system's row names, and writes what was found.

python scripts/check_systems.py [CONFIG ...] [--all] [--minutes N]

Each config runs in a process of its own. The result, configs/systems/checked.json, is written after each; a config that
passed and was not edited since is not run again, so a run that was stopped goes on where it was. `--all` takes every
shipped config, names take those alone, `--minutes` starts none after that time. In the end the tests that the rows name
are looked up in their files. `mmrl list systems` and docs/systems.md (`python scripts/systems_page.py`) follow from it.
"""

import argparse
import ast
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmrl.commands.systems import digest, named_by
from mmrl.core.config import shipped_names
from mmrl.core.systems import systems

ROOT = Path(__file__).parents[1]
FILE = ROOT / "configs" / "systems" / "checked.json"
SECONDS = 1800  # of one dry run at most


def main(arguments: Sequence[str]) -> int:
    """Runs what is left to run. Returns the number of configs whose dry run failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configs", nargs="*", metavar="CONFIG")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--minutes", type=float)
    options = parser.parse_args(arguments)
    named = [config for configs in named_by().values() for config in configs]
    chosen = options.configs or (shipped_names() if options.all else list(dict.fromkeys(named)))
    begin, rows, failed = time.monotonic(), read_rows(), 0
    for config in chosen:
        if (row := rows.get(config)) and row["passed"] and row["digest"] == digest(config):
            continue
        if options.minutes is not None and time.monotonic() - begin > 60 * options.minutes:
            print(f"{config} and what follows are left for another run")
            break
        rows[config] = dry_run(config)
        failed += not rows[config]["passed"]
        print(f"{config}: {'passed' if rows[config]['passed'] else 'failed: ' + rows[config]['error']}", flush=True)
        write(rows)
    write(rows)
    return failed


def dry_run(config: str) -> dict[str, Any]:
    """Returns the row of a config's dry run, on the CPU and in a process of its own."""
    command = [sys.executable, "-m", "mmrl", "check", config, "--tiny", "--json", "threads=1"]
    row: dict[str, Any] = {"config": config, "digest": digest(config), "passed": False}
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return row | {"error": f"took more than {SECONDS} seconds"}
    if done.returncode:
        return row | {"error": (done.stderr or done.stdout).strip()[-500:]}
    return row | {"passed": bool(json.loads(done.stdout)["is_good"])}


def read_rows() -> dict[str, dict[str, Any]]:
    """Returns what was found before, by config; configs that are gone are left out."""
    found = json.loads(FILE.read_text(encoding="utf-8"))["configs"] if FILE.is_file() else []
    return {row["config"]: row for row in found if row["config"] in shipped_names()}


def write(rows: dict[str, dict[str, Any]]) -> None:
    tests = sorted({name for one in systems() for name in one.tests if is_there(name)})
    text = json.dumps({"configs": [rows[name] for name in sorted(rows)], "tests": tests}, indent=1)
    FILE.write_text(text + "\n", encoding="utf-8")


def is_there(test: str) -> bool:
    """Returns whether a test file exists, and defines the function behind `::` where there is one."""
    path, _, name = test.partition("::")
    if not (ROOT / path).is_file():
        return False
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return name in functions if name else any(one.startswith("test_") for one in functions)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
