"""docs/identities.md names a test for every identity, and each of them exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOW, VISION = [str(item) for item in range(1, 27)], [f"V{item}" for item in range(1, 25)]  # flows, tokens
ITEMS = {*FLOW} | {*VISION}  # built so far
LATER = {"24", "25", "V6", "V22"}  # wholly, or in part


def rows(later: bool) -> list[tuple[str, str]]:
    """Item and last cell of each row: of the tables of tests, or of the one that is left to later parts."""
    built, _, left = (ROOT / "docs" / "identities.md").read_text(encoding="utf-8").partition("## Left to later parts")
    lines = [line for line in (left if later else built).splitlines() if line.startswith("|")]
    cells = [line.strip("|").split(" | ") for line in lines if not line.startswith(("| item |", "|---"))]
    return [(item.strip(), last.strip()) for item, _, last in cells]


def functions_of(file: Path) -> set[str]:
    return {*re.findall(r"^def (\w+)\(", file.read_text("utf-8"), re.MULTILINE)}


def test_every_named_test_exists() -> None:
    missing = []
    for _, name in rows(later=False):
        file, _, function = name.partition("::")
        path = ROOT / file
        if not (path.is_file() and function.startswith("test_") and function in functions_of(path)):
            missing.append(name)
    assert not missing


def test_every_item_has_a_row() -> None:
    assert {item for item, _ in rows(later=False) if not item.startswith("R-")} == ITEMS  # R-: a variant's parent
    assert {item for item, _ in rows(later=True)} == LATER
    assert {*FLOW, *VISION} == ITEMS | LATER
