"""Result files: one for each device, `results/DEVICE.json`; a check that runs again replaces its own line."""

import json
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]
STATED = ("torch", "triton", "transformers", "diffusers", "peft", "accelerate", "pydantic", "flash-attn", "vllm")


def installed() -> dict[str, str]:
    """Returns the version of every installed package by its normalised name."""
    found: dict[str, str] = {}
    for one in distributions():
        if name := one.metadata["Name"]:
            found.setdefault(normalised(name), one.version)
    return dict(sorted(found.items()))


def normalised(name: str) -> str:
    """Returns a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def machine() -> dict[str, Any]:
    """Returns what `--versions` prints: Python, the platform, and all packages."""
    return {"python": platform.python_version(), "machine": platform.machine(), "packages": installed()}


def device_name(device: str) -> str:
    """Returns the name of the device: a GPU's own, else the processor's architecture."""
    if device != "cuda":
        return f"{device} {platform.machine()}"
    import torch

    return str(torch.cuda.get_device_name())


def stated(device: str) -> dict[str, Any]:
    """Returns the versions and the commit that a result belongs to."""
    packages = installed()
    found: dict[str, Any] = {"python": platform.python_version()}
    found |= {name: packages[name] for name in STATED if name in packages}
    if device == "cuda":
        import torch

        found |= {"cuda": torch.version.cuda, "memory_gb": round(torch.cuda.mem_get_info()[1] / 1e9, 1)}
    return found | {"commit": commit()}


def commit() -> str:
    """Returns the commit of the working tree, with `+` where it was changed; `unknown` without git."""

    def ask(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return ask("rev-parse", "--short=12", "HEAD") + ("+" if ask("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write(folder: Path, device: str, lines: Sequence[Mapping[str, Any]], *, is_tiny: bool) -> Path:
    """Writes the lines of a run into the file of its device, and returns the file."""
    name = device_name(device)
    path = folder / f"{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}{'_tiny' if is_tiny else ''}.json"
    held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    stamp = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "versions": stated(device)}
    checks = held.get("checks", {}) | {line["check"]: {**line, **stamp} for line in lines}
    made = {"device": name, "type": device, "is_tiny": is_tiny, "checks": checks}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)
    return path
