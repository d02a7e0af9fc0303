"""Gathering of wheels: what a machine has, what a wheel needs there, what clashes; nothing is downloaded."""

from pathlib import Path
from zipfile import ZipFile

import gather_wheels
import pytest
from packaging.requirements import Requirement

from tests.parameters import in_one_test

THERE = {"python": "3.12.3", "machine": "x86_64", "packages": {"Torch": "2.11.0", "typing_extensions": "4.15.0"}}


def wheel(folder: Path, name: str, version: str, *needs: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", *(f"Requires-Dist: {need}" for need in needs)]
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
    return path


def test_names_are_compared_as_indexes_do() -> None:
    assert gather_wheels.versions_of(THERE) == {"torch": "2.11.0", "typing-extensions": "4.15.0"}
    assert gather_wheels.versions_of({"packages": ["Py_YAML"]}) == {"py-yaml": None}


@in_one_test(
    ("requirement", "expected"),
    [("torch>=2.0", True), ("torch>=2.13", False), ("typing_extensions", True), ("peft", False)],
)
def test_a_package_is_there_in_a_version_that_fits(requirement: str, expected: bool) -> None:
    assert gather_wheels.is_there(Requirement(requirement), gather_wheels.versions_of(THERE)) is expected


def test_needs_are_those_of_the_machine_without_extras(tmp_path: Path) -> None:
    path = wheel(tmp_path, "one", "1.0", "two>=1", 'old; python_version < "3.12"', 'new; python_version >= "3.12"',
                 'docs; extra == "docs"', 'win; sys_platform == "win32"')  # fmt: skip
    assert [need.name for need in gather_wheels.needs_of(path, THERE)] == ["two", "new"]


def test_older_versions_are_tried_where_the_newest_needs_another_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(requirement: str, there: object, folder: Path) -> Path | str:
        asked.append(requirement)
        if requirement.startswith("three"):
            return "three: no wheel"
        if requirement.startswith("two"):
            return wheel(folder, "two", "7.0")
        newest = "<" not in requirement
        return wheel(folder, "one", "2.0" if newest else "1.9", "torch>=2.13" if newest else "torch>=2.0", "two")

    monkeypatch.setattr(gather_wheels, "download", download)
    folder = tmp_path / "wheels"
    folder.mkdir()
    found = gather_wheels.gather(THERE, folder, ["one", "three", "torchvision"], 40)
    assert found["files"] == ["one-1.9-py3-none-any.whl", "two-7.0-py3-none-any.whl"]
    assert found["failed"] == {"three": "three: no wheel"}
    assert found["left_out"] == {"torchvision": "belongs to the machine"}
    assert asked == ["one", "one<2.0", "three", "two"]
    assert sorted(path.name for path in folder.iterdir()) == found["files"]


def test_what_grows_beyond_the_limit_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_wheels, "download", lambda requirement, there, folder: wheel(folder, "one", "1.0"))
    folder = tmp_path / "wheels"
    folder.mkdir()
    found = gather_wheels.gather(THERE, folder, ["one"], 0.00001)
    assert found["left_out"] == {"one": "more than 1e-05 MiB together"}
    assert list(folder.iterdir()) == []


def test_what_is_gathered_is_what_mmrl_needs() -> None:
    needed = {Requirement(line).name for line in gather_wheels.needs_of_mmrl()}
    assert {"pydantic", "diffusers", "httpx2", "lark"} <= needed
    assert set(gather_wheels.VIDEOS) <= needed
