"""Trains the lab configs and quickstarts for two iterations and writes what came out; compares two such files.

    python scripts/same_training.py write BEFORE.json      # with one version of mmrl on PYTHONPATH
    python scripts/same_training.py compare BEFORE.json AFTER.json

A record holds every metric but times and memory, as text of full precision, and the SHA-256 of every file of weights.
Exit code 1 where the records differ.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ITERATIONS = 2


def record(config: str, folder: Path) -> dict[str, Any]:
    """Metrics and hashes of weights of a short run of the config."""
    from mmrl.commands.train import train
    from mmrl.core.config import load_config
    from mmrl.reporting.metric_names import VARYING
    from mmrl.run_directory import start

    changes = [f"iterations={ITERATIONS}", "threads=1", "checkpoint.every=1", "checkpoint.keep=2"]
    if (evaluation := load_config(config).evaluation) is not None:
        samples = min(2, evaluation.samples_per_prompt)
        changes += ["evaluation.num_prompts=4", f"evaluation.samples_per_prompt={samples}"]
    settings, folder = start.new_run(config, changes, folder)
    train(settings, folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    metrics = [{name: value for name, value in line.items() if not name.startswith(VARYING)} for line in lines]
    for line in metrics:
        for name in [name for name in line if "second" in name or name.endswith("/time")]:
            line.pop(name)
    files = sorted(folder.glob("checkpoints/*/*.safetensors"))
    hashes = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {"metrics": [json.dumps(line, sort_keys=True) for line in metrics], "weights": hashes}


def write(out: Path, configs: list[str]) -> None:
    """Records of the configs, by default all of the labs and the quickstarts."""
    from mmrl.core.config import shipped_names

    names = configs or [name for name in shipped_names() if name.startswith(("lab/", "quickstart"))]
    records = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            records[name] = record(name, Path(folder) / "run")
        out.write_text(json.dumps(records, indent=1) + "\n", "utf-8")


def compare(before: Path, after: Path) -> list[str]:
    """What differs, a line each; metrics that had another name in the first file are compared under that of now."""
    from mmrl.reporting.metric_names import renamed

    first, second = (json.loads(path.read_text("utf-8")) for path in (before, after))
    found = [f"only in one of the files: {name}" for name in sorted(set(first) ^ set(second))]
    for one in first.values():
        one["metrics"] = [json.dumps(renamed(json.loads(line)), sort_keys=True) for line in one["metrics"]]
    for name in sorted(set(first) & set(second)):
        for what in ("metrics", "weights"):
            if first[name][what] != second[name][what]:
                found.append(f"{name}: {what} differ")
    print(f"{len(set(first) & set(second))} configs compared")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("out", type=Path)
    writing.add_argument("configs", nargs="*")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "write":
        write(chosen.out, chosen.configs)
        return 0
    found = compare(chosen.before, chosen.after)
    print("\n".join(found) or "equal bit for bit")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
