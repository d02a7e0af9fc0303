"""Runs `mmrl check --tiny` of configs on the pretend accelerator, and writes what was found.

python scripts/pretend_accelerator.py [CONFIG ...] [--minutes N]

Without names it takes the lab configs and the twins of all real-size configs. Each runs in a fork of this process,
which has imported what those before it needed, for some 5 seconds of one core. The result,
configs/systems/pretended.json, is written after each, and docs/pretend_accelerator.md with it; a config that passed and
was not edited since is not run again unless it is named. `--minutes` starts none after that time. `--page` writes the
page alone. Prints the figures of each; returns the number of configs that mix devices or fail.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
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
DECODING, MICRO_BATCH = 2, 4  # reads of the host that are allowed in these steps, in a micro-batch
IMPORTED = (
    "mmrl",
    "torch",
    "torchvision",
    "transformers",
    "diffusers",
    "peft",
    "accelerate",
    "datasets",
    "scipy",
    "PIL",
)


def main(arguments: Sequence[str]) -> int:
    """Runs what is left to run, or what is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("configs", nargs="*", metavar="CONFIG")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args(arguments)
    importlib.import_module("tests.pretend_accelerator")  # once for all forks
    begin, rows = time.monotonic(), read_rows()
    for config in () if options.page else options.configs or shipped_names():
        row = rows.get(config)
        if not options.configs and row is not None and is_good(row) and row["digest"] == digest(config):
            continue
        if options.minutes is not None and time.monotonic() - begin > 60 * options.minutes:
            print(f"{config} and what follows are left for another run")
            break
        rows[config], seconds = run(config)
        print(f"{row_of(rows[config])} {seconds:.1f} s of a core", flush=True)
        write(rows)
    write(rows)
    print(*summary(list(rows.values())), sep="\n")
    return sum(not is_good(row) for row in rows.values())


def run(config: str) -> tuple[dict[str, Any], float]:
    """Returns the row of a config, run in a fork of this process, and the seconds of a core that it took.

    What the fork had to import is imported here, for those that follow.
    """
    row: dict[str, Any] = {"config": config, "digest": digest(config)}
    with tempfile.TemporaryDirectory(prefix="mmrl-pretend-") as name:
        file, errors = Path(name) / "row.json", Path(name) / "errors"
        child = multiprocessing.get_context("fork").Process(target=run_here, args=(config, file, errors))
        child.start()
        child.join(SECONDS)
        if child.is_alive():
            child.kill()
            return row | {"error": f"took more than {SECONDS} seconds"}, float(SECONDS)
        if child.exitcode:
            lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it ended in silence"]
            return row | {"error": lines[-1][-500:]}, 0.0  # without the paths of a traceback
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    for module in found.pop("modules"):
        importlib.import_module(module)
    seconds: float = found.pop("seconds")
    return row | found, seconds


def run_here(config: str, file: Path, errors: Path) -> None:
    """Runs a config in this process and writes what was noted, the modules that it imported, and the seconds."""
    with errors.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    before, begin = set(sys.modules), time.process_time()
    found = noted(config) | {"seconds": time.process_time() - begin}
    new = [name for name, module in sys.modules.items() if name not in before and getattr(module, "__spec__", None)]
    found["modules"] = [name for name in new if name.partition(".")[0] in IMPORTED]
    file.write_text(json.dumps(found), encoding="utf-8")


def noted(config: str) -> dict[str, Any]:
    """Runs a config in this process; returns what was noted, places by how often they were there."""
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
    lines = ",\n".join(json.dumps(row) for row in ordered)  # a line for each config
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    PAGE.write_text(page(ordered), encoding="utf-8")


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page of the rows."""
    lines = [
        "# Without a GPU: mixed devices and reads of the host",
        "",
        "Written by `python scripts/pretend_accelerator.py`; do not edit. Each config ran as `mmrl check --tiny` does,",
        "with fewer and shorter samples, on tensors that say they are on an accelerator and hold tensors of the CPU",
        "(`tests/pretend_accelerator.py`). A *mix* is an operation on tensors of both devices: an error on a GPU. A",
        "*read* is an operation after which the host waits for the device. Each run makes two iterations.",
        "",
        f"- **decoding**: reads in {STEPS} steps of decoding: in the loop that samples answers, divided by its blocks",
        f"  of {STEPS} steps (a last block may be shorter).",
        "- **micro-batch**: reads in the forward and backward passes of one micro-batch, of all weights that the loss",
        "  needs. Behind it those of them in mmrl's own lines, and in lines of transformers, diffusers and peft,",
        "  with those of the backward pass of operations there.",
        "- **rollout**: all other reads while an iteration's samples are made and scored; pipelines and schedulers of",
        "  diffusers read their timesteps.",
        "- **iteration**: all other reads in an iteration: advantages, optimizer steps, metrics.",
        "",
        *summary(rows),
        "",
        "| config | mixes | decoding | micro-batch | of mmrl | of libraries | rollout | iteration |",
        "|---|---|---|---|---|---|---|---|",
        *(row_of(row) for row in rows),
        "",
        "## Where the host reads",
        "",
        "Per unit: a block of decoded steps, a micro-batch, an iteration. The largest number of all configs stands",
        "with the line.",
        "",
        *(line for phase in ("decoding", "micro-batch", "rollout", "iteration") for line in lines_of(rows, phase)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the sentences that sum up the rows: how many ran, mixed, and read more than is allowed."""
    ran = [row for row in rows if "mixes" in row]
    above = {
        phase: [row["config"] for row in ran if of_phase(row, phase) > allowed]
        for phase, allowed in (("decoding", DECODING), ("micro-batch", MICRO_BATCH))
    }
    largest = {phase: max((of_phase(row, phase) for row in ran), default=0.0) for phase in ("rollout", *above)}
    return [
        f"{len(ran)} of {len(shipped_names())} configs ran, {sum(not row['passed'] for row in ran)} of them failed;",
        f"{sum(bool(row['mixes']) for row in ran)} mix devices. The most reads: {largest['decoding']:.1f} in {STEPS}",
        f"decoded steps ({DECODING} allowed), {largest['micro-batch']:.1f} in a micro-batch ({MICRO_BATCH} allowed),",
        f"{largest['rollout']:.1f} in the rollout of an iteration. Above what is allowed:",
        *(f"{len(names)} in {phase} ({', '.join(names) or 'none'});" for phase, names in above.items()),
    ]


def row_of(row: Mapping[str, Any]) -> str:
    """Returns a config's row of the table."""
    if "mixes" not in row:
        return f"| {row['config']} | did not end | | | | | | |"
    own = sum(count for line, count in row["reads"].get("micro-batch", {}).items() if " [in " not in line)
    num_micro_batches = units_of(row)["micro-batch"]
    own_share = own / num_micro_batches if num_micro_batches else 0.0
    cells = [
        text_of(row, "decoding"),
        text_of(row, "micro-batch"),
        f"{own_share:.1f}" if num_micro_batches else "",
        f"{of_phase(row, 'micro-batch') - own_share:.1f}" if num_micro_batches else "",
        text_of(row, "rollout"),
        text_of(row, "iteration"),
    ]
    return f"| {row['config']} | {sum(row['mixes'].values())} | {' | '.join(cells)} |"


def units_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Returns how often each phase was there: blocks of steps, micro-batches, iterations."""
    units = row["units"]
    return {
        "decoding": units.get("block of steps", 0),
        "micro-batch": units.get("micro-batch", 0),
        "rollout": units.get("iteration", 0),
        "iteration": units.get("iteration", 0),
    }


def of_phase(row: Mapping[str, Any], phase: str) -> float:
    """Returns the reads of a phase per unit of it; 0 where there is none."""
    units = units_of(row)[phase]
    return sum(row["reads"].get(phase, {}).values()) / units if units else 0.0


def text_of(row: Mapping[str, Any], phase: str) -> str:
    return f"{of_phase(row, phase):.1f}" if units_of(row)[phase] else ""


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
    sys.path.insert(0, str(ROOT))  # for what the tests share
    sys.exit(main(sys.argv[1:]))
