"""Gathers the wheels that a machine without a network lacks for mmrl, to be carried there in a folder.

    python -m benchmarks.gpu --versions > there.json        (on the machine, or what is known of it; see below)
    python scripts/gather_wheels.py there.json wheels/      (here)
    python -m benchmarks.gpu --wheels wheels/               (there)

`there.json` holds `python` (3.12), `machine` (x86_64) and `packages`: names with versions, or a list of names where the
versions are not known. Wheels are taken for that Python, in the newest versions that fit what the machine has, which is
left as it is: a package that asks for a newer one of what is there is tried in older versions. Needs of needs follow.
What mmrl needs is gathered, by pyproject.toml, but readers of videos (`--packages`: something else); a package that
grows beyond `--limit` MiB together is left out and named. Prints one JSON object: the files, their size, and what was
left out and why.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from email.parser import Parser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
# These belong to the machine: another version would need another driver, or weighs gigabytes.
MACHINE = ("torch", "torchvision", "torchaudio", "triton", "nvidia", "cuda", "flash-attn", "vllm")
EXTRAS = ("math", "json")
VIDEOS = ("av", "decord")  # no check reads a video from a file, and they weigh as much as all others together
TAGS = ("2_28", "2_27", "2_24", "2_17")
OLDER = 6  # versions that are tried of one package


def main(arguments: Sequence[str]) -> int:
    """Gathers the wheels. Returns 1 where a package cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("there", type=Path, help="what the machine has, as JSON")
    parser.add_argument("folder", type=Path, help="of the wheels; made if it is not there")
    parser.add_argument("--packages", nargs="+", default=needs_of_mmrl(), metavar="NAME")
    parser.add_argument("--limit", type=float, default=40.0, help="MiB of all wheels together")
    options = parser.parse_args(arguments)
    there = json.loads(options.there.read_text(encoding="utf-8"))
    options.folder.mkdir(parents=True, exist_ok=True)
    found = gather(there, options.folder, options.packages, options.limit)
    print(json.dumps(found, indent=1))
    return int(bool(found["failed"]))


def gather(there: Mapping[str, Any], folder: Path, packages: Sequence[str], limit: float) -> dict[str, Any]:
    """Downloads what is missing and fits; returns files, size in MiB, and what is left out or failed, with reasons."""
    has = versions_of(there)
    waiting = [Requirement(name) for name in packages]
    files: dict[str, str] = {}
    left, failed = dict[str, str](), dict[str, str]()
    while waiting:
        wanted = waiting.pop(0)
        name = canonicalize_name(wanted.name)
        if name in files or name in left or name in failed or is_there(wanted, has):
            continue
        if name.startswith(MACHINE) or name in VIDEOS:
            left[name] = "belongs to the machine" if name.startswith(MACHINE) else "reads videos"
            continue
        try:
            wheel = fetched(wanted, there, has, folder)
        except LookupError as error:
            failed[name] = str(error)
            continue
        if size_of(folder) > limit:
            left[name] = f"more than {limit:g} MiB together"
            wheel.unlink()
            continue
        files[name] = wheel.name
        waiting += needs_of(wheel, there)
    return {"files": sorted(files.values()), "mib": round(size_of(folder), 1), "left_out": left, "failed": failed}


def needs_of_mmrl() -> list[str]:
    """Returns the requirements of mmrl's default install, and of rewards that shipped configs have."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(need for extra in EXTRAS for need in project["optional-dependencies"][extra])]


def versions_of(there: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns what a machine has, by normalised name; None where the version is not known."""
    packages = there["packages"]
    pairs = packages.items() if isinstance(packages, Mapping) else ((name, None) for name in packages)
    return {canonicalize_name(name): version for name, version in pairs}


def is_there(wanted: Requirement, has: Mapping[str, str | None]) -> bool:
    """Returns whether the machine has a package; a version that is not known is taken to fit."""
    name = canonicalize_name(wanted.name)
    if name not in has:
        return False
    version = has[name]
    return version is None or wanted.specifier.contains(version, prereleases=True)


def fetched(wanted: Requirement, there: Mapping[str, Any], has: Mapping[str, str | None], folder: Path) -> Path:
    """Downloads the newest wheel whose needs the machine's packages meet. Raises LookupError where there is none."""
    below, why = "", ""
    for _ in range(OLDER):
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            wheel = download(f"{wanted.name}{join(wanted, below)}", there, Path(name))
            if isinstance(wheel, str):
                raise LookupError(f"{wheel}{why}")
            clash = next((need for need in needs_of(wheel, there) if clashes(need, has)), None)
            if clash is None:
                return wheel.rename(folder / wheel.name)
            version = wheel.name.split("-")[1]
            below, why = f"<{version}", f"; {version} needs {clash}, which the machine has in another version"
    raise LookupError(f"none of the newest {OLDER} versions fits{why}")


def join(wanted: Requirement, below: str) -> str:
    """Returns the version specifier of a requirement, and a bound beside it."""
    return ",".join(part for part in (str(wanted.specifier), below) if part)


def clashes(need: Requirement, has: Mapping[str, str | None]) -> bool:
    """Returns whether the machine has a package in a version that does not fit."""
    return canonicalize_name(need.name) in has and not is_there(need, has)


def download(requirement: str, there: Mapping[str, Any], folder: Path) -> Path | str:
    """Downloads one wheel for the machine; returns it, or why there is none."""
    version, machine = ".".join(str(there["python"]).split(".")[:2]), there.get("machine", "x86_64")
    platforms = [f"--platform=manylinux_{tag}_{machine}" for tag in TAGS]
    platforms += [f"--platform=manylinux2014_{machine}", f"--platform=manylinux1_{machine}"]
    abis = [f"--abi={abi}" for abi in (f"cp{version.replace('.', '')}", "abi3", "none")]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    command = [sys.executable, "-m", "pip", "download", *options, *abis, *platforms, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return f"{requirement}: {(lines or ['no wheel'])[-1].removeprefix('ERROR: ')}"
    return wheels[0]


def needs_of(wheel: Path, there: Mapping[str, Any]) -> list[Requirement]:
    """Returns what a wheel requires on the machine, without extras."""
    version = str(there["python"])
    short = ".".join(version.split(".")[:2])
    environment: dict[str, Any] = {**default_environment()} | {
        "python_version": short,
        "sys_platform": "linux",
        "extra": "",
    }
    environment |= {"python_full_version": version if version.count(".") > 1 else f"{version}.0"}
    environment |= {"platform_machine": there.get("machine", "x86_64"), "platform_system": "Linux"}
    with ZipFile(wheel) as archive:
        path = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        lines = Parser().parsestr(archive.read(path).decode()).get_all("Requires-Dist") or []
    needs = [Requirement(line) for line in lines]
    return [need for need in needs if need.marker is None or need.marker.evaluate(environment)]


def size_of(folder: Path) -> float:
    """Returns the size of all wheels of a folder in MiB."""
    return sum(path.stat().st_size for path in folder.glob("*.whl")) / 2**20


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
