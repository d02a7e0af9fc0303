"""docs/maths: references from code lead to a heading there, every page is listed, and every test named there exists."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "maths"
PAGES = sorted(FOLDER.glob("*.md"))
READ = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".js", ".html"}
LEFT_OUT = {".venv", ".git", "runs", "build", "dist", "node_modules", "checkpoint", "__pycache__"}
REFERENCE = re.compile(r"docs/maths/([\w.-]+\.md)(?:#([\w-]+))?")
# Notes that are no part of the repository, by the names and numbers with which they were once referred to.
NO_DOCUMENT = re.compile(r"\b(?:flow|vlm)(?:_lab)?\.md\b|\b[Tt]raps? H\d|reference/\w+\.md|\bSTYLE\.md|\(DESIGN\b")


@cache
def texts() -> dict[str, str]:
    """Every text of the repository but this file, by its path; what links lead to stands where it is."""
    found = {}
    for top in sorted(path for path in ROOT.iterdir() if path.name not in LEFT_OUT):
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            inside = path.relative_to(ROOT)
            is_read = path.suffix in READ or path.name == "Makefile"
            if is_read and path.is_file() and not LEFT_OUT & {*inside.parts} and path != Path(__file__):
                found[str(inside)] = path.read_text(encoding="utf-8", errors="replace")
    return found


def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links, as GitHub makes them."""
    without_code = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", without_code, flags=re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(names) == len({*names}), f"{page.name} has a heading twice"
    return {*names}


def broken(text: str) -> list[str]:
    """The references of a text that lead to no page or heading."""
    found = []
    for match in REFERENCE.finditer(text):
        page = FOLDER / match[1]
        if not page.is_file() or (match[2] is not None and match[2] not in anchors(page)):
            found.append(match[0])
    return found


def test_every_reference_leads_to_a_heading() -> None:
    assert {path: wrong for path, text in texts().items() if (wrong := broken(text))} == {}
    assert sum(len(REFERENCE.findall(text)) for path, text in texts().items() if path.endswith(".py")) > 50


def test_a_reference_that_leads_nowhere_is_found() -> None:
    page = "docs/maths/"
    assert broken(f"see {page}traps.md#windows-without-steps, and {page}README.md") == []
    assert broken(f"see {page}traps.md#no-such-trap.") == [f"{page}traps.md#no-such-trap"]
    assert broken(f"{page}none.md") == [f"{page}none.md"]


def test_every_page_is_listed() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.name != "README.md" and f"]({page.name})" not in index] == []
    assert "](maths/README.md)" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")


def test_every_named_test_exists() -> None:
    known = functions()
    for page in PAGES:
        named = {*re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
        assert named - known == set(), page.name


@cache
def functions() -> set[str]:
    """The names of all test functions."""
    texts = [file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py")]
    return {name for text in texts for name in re.findall(r"^def (\w+)\(", text, re.MULTILINE)}


@pytest.mark.slow
def test_nothing_refers_to_a_document_that_is_not_here() -> None:
    assert {path: found for path, text in texts().items() if (found := NO_DOCUMENT.findall(text))} == {}
