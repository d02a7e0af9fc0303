"""What is installed: every package and data file, the links of a bare clone, pinned versions; and an installed mmrl."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.parameters import in_one_test

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
LINKS = ("configs", "modalities", "rewards", "samplers")


def tracked() -> list[Path]:
    """The files of the repository, relative to its root: those git knows and those it would add."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return [Path(name) for name in listing.stdout.split("\0") if name and os.path.lexists(ROOT / name)]


def folder_of(package: str) -> Path:
    """Where setuptools takes a package from, relative to the root."""
    mapping: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
    mapped = next(name for name in sorted(mapping, reverse=True) if f"{package}.".startswith(f"{name}."))
    return Path(mapping[mapped], *package.removeprefix(mapped).split("."))


def in_wheel(file: Path) -> str:
    """The name in the wheel of a file of the repository."""
    return (Path("mmrl") / file if file.parts[0] in LINKS else file).as_posix()


def shipped() -> list[Path]:
    """Every file that belongs to mmrl, relative to the root."""
    return [file for file in tracked() if file.parts[0] in ("mmrl", *LINKS) and not (ROOT / file).is_symlink()]


def texts(files: Iterable[Path]) -> dict[Path, str]:
    """The files that are text."""
    found = {}
    for file in files:
        try:
            found[file] = (ROOT / file).read_text("utf-8")
        except (UnicodeDecodeError, IsADirectoryError):  # binary; a link to a folder
            continue
    return found


def test_the_list_of_packages_is_the_folders_that_hold_python() -> None:
    folders = {in_wheel(file.parent).replace("/", ".") for file in shipped() if file.suffix == ".py"}
    assert sorted(folders) == sorted(PACKAGES)


def test_every_package_says_what_it_is() -> None:
    assert [name for name in PACKAGES if not (ROOT / folder_of(name) / "__init__.py").is_file()] == []


def test_every_data_file_is_package_data() -> None:
    patterns: dict[str, list[str]] = PROJECT["tool"]["setuptools"]["package-data"]
    covered = {
        file for name, globs in patterns.items() for glob in globs for file in (ROOT / folder_of(name)).glob(glob)
    }
    data = [file for file in shipped() if file.suffix != ".py"]
    assert data, "py.typed at least"
    assert [str(file) for file in data if ROOT / file not in covered] == []


@in_one_test("name", LINKS)
def test_a_link_inside_mmrl_is_relative_and_leads_to_the_folder_at_the_root(name: str) -> None:
    link = ROOT / "mmrl" / name
    assert os.readlink(link) == f"../{name}"
    assert link.resolve() == (ROOT / name).resolve()


@pytest.mark.slow
def test_no_file_holds_a_path_of_a_machine_or_the_address_of_an_index() -> None:
    folders = "|".join(re.escape(name) for name in ("/" + "work/", "/" + "root/", f"{Path.home()}/"))
    places = re.compile(rf"(?<![\w.])({folders})|index-url|https?://\S+/simple\b")
    own = Path(__file__).relative_to(ROOT)
    found = [
        f"{file}:{number}: {line.strip()[:100]}"
        for file, text in texts(tracked()).items()
        if file != own
        for number, line in enumerate(text.splitlines(), 1)
        if places.search(line)
    ]
    assert not found, "\n".join(found)


def test_binary_files_stay_small() -> None:
    files = tracked()
    readable = texts(files)
    binary = {file: (ROOT / file).stat().st_size for file in files if file not in readable and (ROOT / file).is_file()}
    pictures = sum(size for file, size in binary.items() if file.is_relative_to("docs"))
    assert pictures < 6e6, "of the docs"
    assert sum(binary.values()) - pictures < 24e6, "checkpoints of the labs"


def requirements(*extras: str) -> list[Requirement]:
    """What mmrl asks for, its own extras resolved."""
    project = PROJECT["project"]
    asked = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    found = [Requirement(text) for text in asked]
    own = {extra for requirement in found if requirement.name == "mmrl" for extra in requirement.extras}
    return [requirement for requirement in found if requirement.name != "mmrl"] + (requirements(*own) if own else [])


@pytest.mark.slow
def test_constraints_pin_everything_that_a_development_install_brings() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [
        re.fullmatch(r"([\w.-]+)==[\w.]+(; platform_system == \"Linux\"( and platform_machine == \"x86_64\")?)?", line)
        for line in lines
    ]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    pinned = {canonicalize_name(pin[1]) for pin in pins if pin}
    pending, seen = requirements("dev"), set()
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), requirement.extras or {""}
        if (name, frozenset(extras)) in seen:
            continue
        seen.add((name, frozenset(extras)))
        inner = [Requirement(text) for text in metadata.requires(name) or []]
        pending += [
            r for r in inner if not r.marker or any(r.marker.evaluate({"extra": extra}) for extra in {"", *extras})
        ]
    assert sorted({name for name, _ in seen} - pinned) == []


@pytest.mark.slow  # parses every file and asks every installed project
def test_every_import_of_another_project_is_declared() -> None:
    providers = metadata.packages_distributions()
    everything = {canonicalize_name(r.name) for r in requirements(*PROJECT["project"]["optional-dependencies"])}
    missing = set()
    for file, text in texts(shipped()).items():
        if file.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"mmrl"}:
                if not {canonicalize_name(project) for project in providers.get(name, [name])} & everything:
                    missing.add(f"{file} imports {name}")
    assert sorted(missing) == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the repository's files."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for file in tracked():
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, source / file, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that holds the wheel, and sees only the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # A path in a .pth file is searched, but the .pth files there are not read: an editable mmrl is not seen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs from another folder, without a way to the repository."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow  # builds a wheel
def test_the_wheel_holds_every_file_once_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(name for name in names if ".dist-info/" not in name) == sorted(map(in_wheel, shipped()))
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


@pytest.mark.slow  # makes an environment
def test_the_installed_package_is_found_away_from_the_repository(installed: Path, tmp_path: Path) -> None:
    script = f"import {', '.join(PACKAGES)}; print(mmrl.__file__, mmrl.rewards.__file__, sep='\\n')"
    result = run([str(installed / "python"), "-c", script], tmp_path)
    assert result.returncode == 0, result.stderr
    site = installed.parent
    assert all(Path(line).is_relative_to(site) for line in result.stdout.splitlines()), result.stdout


@pytest.mark.slow  # starts the command line
@pytest.mark.parametrize("arguments", [["--help"], ["list", "rewards"], ["check", "--tiny", "quickstart"]])
def test_the_installed_command_runs_a_shipped_config_from_another_folder(
    installed: Path, tmp_path: Path, arguments: list[str]
) -> None:
    result = run([str(installed / "mmrl"), *arguments], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
